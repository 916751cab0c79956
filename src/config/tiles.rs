//! Templates of map tiles (`server.map_tiles`): what they must look like, and what a
//! page's policy has to allow for them. Asks no tile server for anything.

/// What a template may hold besides itself.
const PLACEHOLDERS: [&str; 5] = ["{z}", "{x}", "{y}", "{s}", "{r}"];

/// The origin of a template's tiles as a source expression of a Content-Security-Policy
/// (CSP Level 3, section 2.3.1): `https://tiles.example.com`, or `https://*.example.com`
/// for a template that begins with `{s}.`.
///
/// # Errors
/// What is wrong with the template, as the end of a sentence that quotes it.
pub fn tile_origin(template: &str) -> Result<String, &'static str> {
    const FORM: &str = "expected http(s)://host/… with {z}, {x} and {y}";
    let (scheme, rest) = template.split_once("://").ok_or(FORM)?;
    if !matches!(scheme, "http" | "https") {
        return Err(FORM);
    }
    let (authority, path) = rest.split_once('/').ok_or(FORM)?;
    if !["{z}", "{x}", "{y}"].iter().all(|placeholder| path.contains(placeholder)) {
        return Err(FORM);
    }
    let left = PLACEHOLDERS.iter().fold(path.to_owned(), |path, known| path.replace(known, ""));
    if left.contains(['{', '}']) {
        return Err("expected no other placeholders than {z}, {x}, {y}, {s} and {r}");
    }
    if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("expected only printable ASCII, other characters as %XX");
    }
    let (any, host) = match authority.strip_prefix("{s}.") {
        Some(host) => ("*.", host),
        None => ("", authority),
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b':');
    if host.is_empty() || !host.bytes().all(plain) {
        return Err(
            "expected a host of letters, digits, dots and hyphens, and at most {s}. before \
                    it",
        );
    }
    Ok(format!("{scheme}://{any}{host}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_origin_of_a_template_is_what_a_policy_allows() {
        for (template, origin) in [
            ("https://tile.openstreetmap.org/{z}/{x}/{y}.png", "https://tile.openstreetmap.org"),
            ("https://{s}.tiles.example.com/a/{z}/{x}/{y}{r}.png", "https://*.tiles.example.com"),
            ("http://10.0.0.7:8088/{z}/{y}/{x}?key=a%20b", "http://10.0.0.7:8088"),
        ] {
            assert_eq!(tile_origin(template), Ok(origin.to_owned()));
        }
    }

    #[test]
    fn what_could_get_into_the_policy_or_is_no_template_is_refused() {
        for template in [
            "",
            "/{z}/{x}/{y}.png",
            "//a/{z}/{x}/{y}.png",
            "ftp://a/{z}/{x}/{y}",
            "javascript://a/{z}/{x}/{y}",
            "https://a/{z}/{x}",
            "https://{z}{x}{y}/",
            "https:///{z}/{x}/{y}",
            "https://{s}./{z}/{x}/{y}",
            "https://a; script-src */{z}/{x}/{y}",
            "https://a b/{z}/{x}/{y}",
            "https://user@a/{z}/{x}/{y}",
            "https://a.{s}.b/{z}/{x}/{y}",
            "https://*/{z}/{x}/{y}",
            "https://a/{z}/{x}/{y}/{key}",
            "https://a/{z}/{x}/{y}/ä",
            "https://a/{z}/{x}/{y}\r\nx",
        ] {
            assert!(tile_origin(template).is_err(), "{template}");
        }
    }
}
