//! What people see in a browser: the live map, embedded in the binary, and the client
//! library that it and pages elsewhere use. The page asks this server for all it needs; only
//! map tiles may come from another, if one is configured.

mod assets;
mod client;

use bytes::Bytes;
use hyper::http::{HeaderValue, Response, StatusCode, header};

use crate::config::{self, tile_origin};
use crate::listener::{Body, Pages, text};

/// How long a browser may keep a file whose name holds its content's hash.
const FOR_EVER: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// The pages of the public port. The client library is there also without the map.
#[derive(Debug, Clone)]
pub struct Site {
    enabled: bool,
    page: String,
    /// What the page wants to know of the configuration.
    settings: serde_json::Value,
    policy: HeaderValue,
}

impl Site {
    /// The pages as `server.map`, `map_tiles` and `map_attribution` want them. Tiles whose
    /// template [`config::Config::validate`] would refuse are left out.
    #[must_use]
    pub fn new(server: &config::Server) -> Self {
        let template = server.map_tiles.as_deref();
        let tiles = template.and_then(|template| Some((template, tile_origin(template).ok()?)));
        let origin = tiles.as_ref().map_or("", |(_, origin)| origin);
        let settings = serde_json::json!({
            "tiles": tiles.as_ref().map(|(template, _)| template),
            "attribution": server.map_attribution.as_deref().unwrap_or_default(),
        });
        let folder = format!("map/{}", *assets::VERSION);
        Self {
            enabled: server.map,
            page: include_str!("map/index.html").replace("{{assets}}", &folder),
            settings,
            policy: policy(origin),
        }
    }

    /// The pages of a server that the demo runs: they have a button to replace it.
    #[must_use]
    pub fn in_demo(mut self, demo: bool) -> Self {
        self.settings["demo"] = demo.into();
        self
    }

    fn answer(&self, content_type: &'static str, body: &str) -> Response<Body> {
        self.guarded(text(StatusCode::OK, content_type, body.to_owned()))
    }

    /// A file of the live map. One that another build has named, during a deploy, is
    /// answered with this build's, but not kept.
    fn asset(&self, path: &str) -> Option<Response<Body>> {
        let (version, name) = path.split_once('/')?;
        if version == "client" {
            // Where a module of the map finds the folder beside its own, as in the sources.
            return client::module(&format!("/client/v1/{name}"));
        }
        let asset = assets::find(name)?;
        let mut response = Response::new(Body::from(Bytes::from_static(asset.body)));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(asset.content_type));
        let keep = if version == *assets::VERSION { FOR_EVER } else { NO_STORE };
        headers.insert(header::CACHE_CONTROL, keep);
        Some(self.guarded(response))
    }

    fn guarded(&self, mut response: Response<Body>) -> Response<Body> {
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_SECURITY_POLICY, self.policy.clone());
        for (name, value) in
            [(header::X_CONTENT_TYPE_OPTIONS, "nosniff"), (header::REFERRER_POLICY, "no-referrer")]
        {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

impl Pages for Site {
    fn page(&self, path: &str) -> Option<Response<Body>> {
        if let Some(module) = client::module(path) {
            return Some(module);
        }
        if !self.enabled {
            return None;
        }
        match path {
            "/" => Some(self.answer("text/html; charset=utf-8", &self.page)),
            "/map/settings.json" => {
                Some(self.answer("application/json", &self.settings.to_string()))
            }
            _ => self.asset(path.strip_prefix("/map/")?),
        }
    }
}

/// Scripts, styles and connections of this server only, and images of `tiles` besides.
fn policy(tiles: &str) -> HeaderValue {
    let images = format!("'self' {tiles}");
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src \
         {}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        images.trim()
    );
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn body(response: Response<Body>) -> String {
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn the_page_names_its_files_and_they_may_be_kept() {
        let site = Site::new(&config::Server::default());
        let page = site.page("/").unwrap();
        assert_eq!(page.headers()[header::CACHE_CONTROL], "no-store");
        let policy = page.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned();
        assert!(policy.contains("default-src 'none'; script-src 'self'; style-src 'self';"));
        assert!(policy.contains("img-src 'self'; "), "{policy}");
        assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
        let page = body(page).await;
        assert!(!page.contains("{{") && !page.contains("style=") && !page.contains("onclick"));
        let script = page.split("src=\"").nth(1).unwrap().split('"').next().unwrap();
        let file = site.page(&format!("/{script}")).unwrap();
        assert_eq!(file.headers()[header::CACHE_CONTROL], FOR_EVER);
        assert_eq!(file.headers()[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
        assert_eq!(file.headers()[header::CONTENT_SECURITY_POLICY], *policy);
        assert!(site.page("/map/client/milepost.js").is_some(), "which session.js imports");
        let other = site.page("/map/0123456789abcdef/main.js").unwrap();
        assert_eq!(other.headers()[header::CACHE_CONTROL], "no-store");
    }

    #[test]
    fn there_is_nothing_else_and_nothing_without_the_map() {
        let mut server = config::Server::default();
        let site = Site::new(&server);
        for path in ["", "/map", "/map/", "/map/x", "/map/x/", "/map/x/../mod.rs", "/map//main.jsx"]
        {
            assert!(site.page(path).is_none(), "{path}");
        }
        server.map = false;
        let site = Site::new(&server);
        for path in ["/", "/map/settings.json", "/map/x/main.js"] {
            assert!(site.page(path).is_none(), "{path}");
        }
    }

    #[tokio::test]
    async fn tiles_of_another_server_are_named_and_allowed_only_where_configured() {
        let template = "https://{s}.tiles.example.com/{z}/{x}/{y}.png";
        let server = config::Server {
            map_tiles: Some(template.to_owned()),
            map_attribution: Some("© <b>us</b>".to_owned()),
            ..config::Server::default()
        };
        let answer = Site::new(&server).page("/map/settings.json").unwrap();
        let policy = answer.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.contains("img-src 'self' https://*.tiles.example.com;"), "{policy}");
        let settings: serde_json::Value = serde_json::from_str(&body(answer).await).unwrap();
        assert_eq!(settings["tiles"], template);
        assert_eq!(settings["attribution"], "© <b>us</b>");

        let none = Site::new(&config::Server::default()).page("/map/settings.json").unwrap();
        let settings: serde_json::Value = serde_json::from_str(&body(none).await).unwrap();
        assert_eq!(settings, serde_json::json!({ "tiles": null, "attribution": "" }));
    }
}
