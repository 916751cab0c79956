//! A synthetic vehicle: drives along streets, slows down for turns, stops at lights.

use crate::client::Fix;

/// Metres in a degree of latitude.
const DEGREE: f64 = 111_320.0;
/// The middle of the fleet's town: Helsinki, which has streets to look at on a map.
const TOWN: (f64, f64) = (60.19, 24.94);

/// Where a vehicle is and what it is about to do.
#[derive(Debug)]
pub(super) struct Route {
    rng: fastrand::Rng,
    latitude: f64,
    longitude: f64,
    /// Degrees from north.
    heading: f64,
    /// The street's direction: the heading turns towards it.
    street: f64,
    /// Metres a second.
    speed: f64,
    cruise: f64,
    /// Metres to the next crossing.
    crossing: f64,
    /// Seconds at a stop.
    stopped: f64,
}

/// The heading that is `by` degrees from `heading`, 0 ≤ h < 360.
fn turned(heading: f64, by: f64) -> f64 {
    let turned = (heading + by).rem_euclid(360.0);
    if turned < 360.0 { turned } else { 0.0 }
}

/// The shorter way from one heading to another, −180 to 180 degrees.
fn way(from: f64, to: f64) -> f64 {
    (to - from + 180.0).rem_euclid(360.0) - 180.0
}

fn rounded(value: f64, scale: f64) -> f64 {
    (value * scale).round() / scale
}

impl Route {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let heading = f64::from(rng.u32(0..4)) * 90.0;
        Self {
            latitude: TOWN.0 + (rng.f64() - 0.5) * 0.08,
            longitude: TOWN.1 + (rng.f64() - 0.5) * 0.16,
            heading,
            street: heading,
            speed: 0.0,
            cruise: 8.0 + rng.f64() * 8.0,
            crossing: 50.0 + rng.f64() * 200.0,
            stopped: rng.f64() * 5.0,
            rng,
        }
    }

    /// Drives on for `seconds`.
    pub(super) fn step(&mut self, seconds: f64) -> Fix {
        // In short steps, so that a slow rate still drives around corners.
        let steps = (seconds / 0.5).ceil().clamp(1.0, 240.0);
        let dt = seconds.min(120.0) / steps;
        let mut left = steps;
        while left >= 1.0 {
            self.drive(dt);
            left -= 1.0;
        }
        Fix {
            speed: Some(rounded(self.speed, 100.0)),
            heading: Some(rounded(self.heading, 10.0) % 360.0),
            accuracy: Some(rounded(3.0 + self.rng.f64() * 4.0, 10.0)),
            ..Fix::new(rounded(self.latitude, 1e6), rounded(self.longitude, 1e6))
        }
    }

    fn drive(&mut self, dt: f64) {
        if self.stopped > 0.0 {
            self.stopped -= dt;
            self.speed = 0.0;
            return;
        }
        let bend = way(self.heading, self.street);
        // Slow in a bend and before the crossing; a car brakes harder than it pulls away.
        let wanted = if bend.abs() > 5.0 {
            5.0
        } else {
            self.cruise.min(2.0 + self.crossing.max(0.0) / 6.0)
        };
        self.speed += (wanted - self.speed).clamp(-3.0 * dt, 1.5 * dt);
        self.heading = turned(self.heading, bend.clamp(-25.0 * dt, 25.0 * dt));
        let metres = self.speed * dt;
        let (sin, cos) = self.heading.to_radians().sin_cos();
        self.latitude += metres * cos / DEGREE;
        self.longitude += metres * sin / (DEGREE * self.latitude.to_radians().cos().max(0.1));
        self.crossing -= metres;
        if self.crossing <= 0.0 {
            self.cross();
        }
    }

    fn cross(&mut self) {
        self.crossing = 80.0 + self.rng.f64() * 300.0;
        if self.rng.f64() < 0.3 {
            self.stopped = 3.0 + self.rng.f64() * 20.0;
        }
        let home = self.home();
        self.street = match self.rng.u32(0..10) {
            // Far out of town every turn leads back.
            _ if home.1 > 6000.0 => rounded(home.0, 1.0 / 90.0),
            0..5 => turned(self.street, self.rng.f64() * 10.0 - 5.0),
            5..7 => turned(self.street, 90.0),
            7..9 => turned(self.street, -90.0),
            _ => turned(self.street, 45.0),
        };
    }

    /// The heading and the distance, in metres, to the middle of the town.
    fn home(&self) -> (f64, f64) {
        let north = (TOWN.0 - self.latitude) * DEGREE;
        let east = (TOWN.1 - self.longitude) * DEGREE * self.latitude.to_radians().cos();
        (turned(east.atan2(north).to_degrees(), 0.0), north.hypot(east))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drives_like_a_vehicle() {
        for seed in 0..20 {
            let mut route = Route::new(seed);
            let (mut moved, mut stood) = (0, 0);
            let mut last = route.step(1.0);
            for _ in 0..3600 {
                let fix = route.step(1.0);
                let north = (fix.latitude - last.latitude) * DEGREE;
                let east =
                    (fix.longitude - last.longitude) * DEGREE * fix.latitude.to_radians().cos();
                assert!(north.hypot(east) < 18.0, "no jumps");
                let (heading, speed) = (fix.heading.unwrap(), fix.speed.unwrap());
                assert!((0.0..360.0).contains(&heading), "{heading}");
                assert!((0.0..=16.0).contains(&speed), "{speed}");
                assert!(way(last.heading.unwrap(), heading).abs() <= 26.0, "no spins");
                stood += u32::from(speed == 0.0);
                moved += u32::from(speed != 0.0);
                last = fix;
            }
            assert!(moved > 1800 && stood > 60, "{moved} {stood}");
            assert!(route.home().1 < 8000.0, "stays about town");
        }
    }

    #[test]
    fn the_same_seed_drives_the_same_way() {
        let (mut one, mut other) = (Route::new(7), Route::new(7));
        for _ in 0..100 {
            assert_eq!(one.step(0.7), other.step(0.7));
        }
    }
}
