// Makes land.bin, the offline base map, from Natural Earth 1:10m (public domain) as the
// npm package world-atlas carries it. Run by hand when the data are to be renewed:
//
//   npm install --no-save world-atlas@2.0.2 topojson-client@3.1.0 && node land.mjs
//
// The file: four little-endian doubles (scale x, scale y, offset x, offset y: degrees =
// grid * scale + offset), then two lists, the rings of the land (to be filled by the
// even-odd rule) and the lines of inland borders. A list is a count and its members; a
// member is a count and that many points, each the difference to the point before (the
// first to 0, 0). Counts are LEB128, differences zigzag LEB128.
import { readFileSync, writeFileSync } from "node:fs";
import { mesh } from "topojson-client";

const read = (name) => JSON.parse(readFileSync(`node_modules/world-atlas/${name}.json`, "utf8"));
const atlas = read("land-10m");
const countries = read("countries-10m");
const { scale, translate } = atlas.transform;

const bytes = [];
const unsigned = (value) => {
  while (value > 127) {
    bytes.push((value & 127) | 128);
    value = Math.floor(value / 128);
  }
  bytes.push(value);
};
const signed = (value) => unsigned(value < 0 ? -2 * value - 1 : 2 * value);

/** Grid points of an arc; ~i is arc i backwards. */
function arc(index) {
  let x = 0;
  let y = 0;
  const points = atlas.arcs[index < 0 ? ~index : index].map(([dx, dy]) => [(x += dx), (y += dy)]);
  return index < 0 ? points.reverse() : points;
}

function write(points) {
  const kept = points.filter(([x, y], i) => {
    return i === 0 || x !== points[i - 1][0] || y !== points[i - 1][1];
  });
  unsigned(kept.length);
  let [px, py] = [0, 0];
  for (const [x, y] of kept) {
    signed(x - px);
    signed(y - py);
    [px, py] = [x, y];
  }
}

/** Steps of the grid around the world. */
const around = Math.round(360 / scale[0]);

/**
 * A ring that goes on over the date line instead of jumping back, so x may leave the grid
 * on either side; one around a pole is closed beyond the edge of the map.
 */
function unwrapped(ring) {
  let shift = 0;
  const points = ring.map(([x, y], i) => {
    const before = i === 0 ? x : ring[i - 1][0];
    if (x - before > around / 2) shift -= around;
    else if (before - x > around / 2) shift += around;
    return [x + shift, y];
  });
  if (shift === 0) return points;
  const south = Math.round((-89 - translate[1]) / scale[1]);
  return [...points, [points[points.length - 1][0], south], [points[0][0], south]];
}

const land = atlas.objects.land;
const shapes = land.type === "GeometryCollection" ? land.geometries : [land];
const rings = shapes
  .flatMap((shape) => (shape.type === "Polygon" ? shape.arcs : shape.arcs.flat()))
  .map((ring) => ring.flatMap((index, i) => arc(index).slice(i === 0 ? 0 : 1)));
unsigned(rings.length);
rings.map(unwrapped).forEach(write);

const borders = mesh(countries, countries.objects.countries, (a, b) => a !== b).coordinates;
unsigned(borders.length);
for (const line of borders) {
  write(
    line.map(([x, y]) => [
      Math.round((x - translate[0]) / scale[0]),
      Math.round((y - translate[1]) / scale[1]),
    ]),
  );
}

const head = Buffer.alloc(32);
[...scale, ...translate].forEach((value, i) => head.writeDoubleLE(value, i * 8));
writeFileSync("land.bin", Buffer.concat([head, Buffer.from(bytes)]));
