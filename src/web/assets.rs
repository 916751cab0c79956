//! The files of the live map, embedded, and the name under which browsers may keep them.

use std::sync::LazyLock;

/// A file that the page loads.
#[derive(Debug)]
pub(super) struct Asset {
    pub(super) name: &'static str,
    pub(super) content_type: &'static str,
    pub(super) body: &'static [u8],
}

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

macro_rules! assets {
    ($($name:literal in $folder:literal: $content_type:expr,)*) => {
        &[$(Asset {
            name: $name,
            content_type: $content_type,
            body: include_bytes!(concat!($folder, "/", $name)),
        },)*]
    };
}

const ASSETS: &[Asset] = assets! {
    "base.js" in "map": SCRIPT,
    "connection.js" in "map": SCRIPT,
    "deploy.js" in "map": SCRIPT,
    "detail.js" in "map": SCRIPT,
    "fleet.js" in "map": SCRIPT,
    "geo.js" in "map": SCRIPT,
    "grid.js" in "map": SCRIPT,
    "history.js" in "map": SCRIPT,
    "icon.svg" in "map": "image/svg+xml",
    "land.bin" in "vendor": "application/octet-stream",
    "layer.js" in "map": SCRIPT,
    "leaflet.css" in "vendor": STYLE,
    "leaflet.js" in "vendor": SCRIPT,
    "list.js" in "map": SCRIPT,
    "main.js" in "map": SCRIPT,
    "map.css" in "map": STYLE,
    "notices.js" in "map": SCRIPT,
    "panel.css" in "map": STYLE,
    "rooms.js" in "map": SCRIPT,
    "session.js" in "map": SCRIPT,
    "sprites.js" in "map": SCRIPT,
    "text.js" in "map": SCRIPT,
    "view.js" in "map": SCRIPT,
};

/// The file of this name.
pub(super) fn find(name: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.name == name)
}

/// All files' content as a name: another build with another file has another.
pub(super) static VERSION: LazyLock<String> = LazyLock::new(|| {
    // FNV-1a: tells builds apart, protects nothing.
    let hash = ASSETS
        .iter()
        .flat_map(|asset| asset.name.bytes().chain(asset.body.iter().copied()))
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("{hash:016x}")
});

#[cfg(test)]
mod tests {
    use super::*;

    /// What a script imports from beside itself.
    fn imports(script: &str) -> impl Iterator<Item = &str> {
        script.split("from \"./").skip(1).filter_map(|rest| rest.split('"').next())
    }

    #[test]
    fn everything_that_the_page_names_is_embedded() {
        let page = include_str!("map/index.html");
        let named = page.split("{{assets}}/").skip(1).filter_map(|rest| rest.split('"').next());
        let scripts = ASSETS.iter().filter(|asset| asset.content_type == SCRIPT);
        let imported = scripts.flat_map(|asset| imports(std::str::from_utf8(asset.body).unwrap()));
        let all: Vec<&str> = named.chain(imported).chain(["land.bin"]).collect();
        assert!(all.contains(&"leaflet.css") && all.contains(&"sprites.js"), "{all:?}");
        for name in all {
            assert!(find(name).is_some(), "{name}");
        }
    }

    /// Leaflet's files hold addresses in comments and in what it would show as its credits.
    #[test]
    fn no_file_of_ours_names_another_server() {
        let page = include_str!("map/index.html");
        let ours = ASSETS
            .iter()
            .filter(|asset| matches!(asset.content_type, SCRIPT | STYLE))
            .filter(|asset| !asset.name.starts_with("leaflet."));
        for text in ours.map(|asset| std::str::from_utf8(asset.body).unwrap()).chain([page]) {
            assert!(!text.contains("://"), "{text}");
        }
    }
}
