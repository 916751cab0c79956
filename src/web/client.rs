//! The browser client, embedded in the binary: dependency-free ES modules under a path that
//! names the version of their interface.
//!
//! Served whether or not there are pages (`server.map`), to any origin: a dashboard elsewhere
//! imports it, and there is no secret in it. Every use asks whether it is still the newest
//! (`no-cache` and an `ETag`), so that a deploy never leaves a browser with files of two
//! versions.

use hyper::http::{HeaderValue, Response, StatusCode, header};

use crate::listener::{Body, text};

/// Where the modules are; a change that breaks their users gets a new number.
const FOLDER: &str = "/client/v1/";

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$( ($name, include_str!(concat!("client/", $name))), )*]
    };
}

const FILES: [(&str, &str); 15] = files![
    "attempt.js",
    "calls.js",
    "core.js",
    "error.js",
    "inbound.js",
    "link.js",
    "milepost.js",
    "moves.js",
    "options.js",
    "outbound.js",
    "requests.js",
    "room.js",
    "sessions.js",
    "timing.js",
    "upload.js",
];

/// The answer to a GET of `path`, if it is a module of the client.
pub(super) fn module(path: &str) -> Option<Response<Body>> {
    let name = path.strip_prefix(FOLDER)?;
    let (_, source) = FILES.iter().find(|(file, _)| *file == name)?;
    let mut response = text(StatusCode::OK, "text/javascript; charset=utf-8", (*source).to_owned());
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CACHE_CONTROL, "no-cache"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
        (header::HeaderName::from_static("cross-origin-resource-policy"), "cross-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if let Ok(tag) = HeaderValue::try_from(format!("\"{:016x}\"", hash(source))) {
        headers.insert(header::ETAG, tag);
    }
    Some(response)
}

/// FNV-1a, to tell one version of a file from another.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_module_and_what_it_imports_is_served() {
        for (name, source) in FILES {
            let response = module(&format!("{FOLDER}{name}")).unwrap();
            assert_eq!(response.status(), 200);
            assert_eq!(response.headers()[header::CONTENT_TYPE], "text/javascript; charset=utf-8");
            assert_eq!(response.headers()[header::ACCESS_CONTROL_ALLOW_ORIGIN], "*");
            for (at, _) in source.match_indices(" from \"") {
                let import = source[at + 7..].split('"').next().unwrap();
                if !import.starts_with("https://") {
                    let path = import.strip_prefix("./").expect("imports are relative");
                    assert!(module(&format!("{FOLDER}{path}")).is_some(), "{name}: {import}");
                }
            }
        }
        for path in ["/client/v1/", "/client/v1/none.js", "/client/v2/milepost.js", "/core.js"] {
            assert!(module(path).is_none(), "{path}");
        }
    }

    #[test]
    fn every_file_of_the_folder_is_in_the_table() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/web/client");
        let mut found: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        found.sort();
        assert_eq!(found, FILES.map(|(name, _)| name));
    }

    #[test]
    fn another_content_has_another_tag() {
        let tag =
            |name| module(&format!("{FOLDER}{name}")).unwrap().headers()[header::ETAG].clone();
        assert_eq!(tag("core.js"), tag("core.js"));
        assert_ne!(tag("core.js"), tag("link.js"));
    }
}
