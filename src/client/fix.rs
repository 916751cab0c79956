//! A position as a publisher gives it.

use serde::Serialize;
use serde_json::{Map, Value};

use super::error::Error;
use crate::ids::RoomId;

/// A position: the names of W3C Geolocation, units as there (protocol.md, "A position").
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fix {
    /// Degrees, WGS 84, −90 to 90.
    pub latitude: f64,
    /// Degrees, WGS 84, −180 to 180.
    pub longitude: f64,
    /// Metres.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub altitude: Option<f64>,
    /// Metres, 0 or more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Metres, 0 or more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub altitude_accuracy: Option<f64>,
    /// Metres a second, 0 or more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed: Option<f64>,
    /// Degrees clockwise from true north, 0 or more and less than 360.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heading: Option<f64>,
    /// The time of the fix, milliseconds since 1970; the server's time of receipt if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<i64>,
    /// Whose position it is; the client's own id if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vehicle_id: Option<String>,
    /// Anything else, carried through to the receivers.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Fix {
    /// A position with nothing but the place.
    #[must_use]
    pub fn new(latitude: f64, longitude: f64) -> Self {
        Self { latitude, longitude, ..Self::default() }
    }
}

/// The payload of a `location_update`: the position's own members behind the rooms and the
/// key.
pub(super) fn payload<T: Serialize + ?Sized>(
    rooms: &[RoomId],
    key: Option<&str>,
    position: &T,
) -> Result<Box<str>, Error> {
    let invalid = |error: serde_json::Error| Error::Invalid(error.to_string());
    let body = serde_json::to_string(position).map_err(invalid)?;
    let members = body
        .strip_prefix('{')
        .ok_or_else(|| Error::Invalid("a position must serialize to an object".into()))?;
    let mut out = String::with_capacity(body.len() + 64);
    out.push_str("{\"roomId\":");
    match rooms {
        [only] => out.push_str(&serde_json::to_string(only).map_err(invalid)?),
        several => out.push_str(&serde_json::to_string(several).map_err(invalid)?),
    }
    if let Some(key) = key {
        out.push_str(",\"key\":");
        out.push_str(&serde_json::to_string(key).map_err(invalid)?);
    }
    if members != "}" {
        out.push(',');
    }
    out.push_str(members);
    Ok(out.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads() {
        let room = |name: &str| RoomId::parse(name).unwrap();
        let fix = Fix { speed: Some(3.5), ..Fix::new(60.0, 25.0) };
        assert_eq!(
            &*payload(&[room("a")], Some("k\"1"), &fix).unwrap(),
            r#"{"roomId":"a","key":"k\"1","latitude":60.0,"longitude":25.0,"speed":3.5}"#
        );
        assert_eq!(
            &*payload(&[room("a"), room("b")], None, &Map::new()).unwrap(),
            r#"{"roomId":["a","b"]}"#
        );
        assert!(payload(&[room("a")], None, &[1]).is_err());
    }
}
