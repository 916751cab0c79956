//! The architecture test: imports point down, never up a floor.

use std::fs;
use std::path::{Path, PathBuf};

/// The floors from the ground up; a module may import its own floor and those below.
const FLOORS: [&[&str]; 8] = [
    &["ids", "close", "budget", "time", "phase", "config"],
    &["protocol"],
    &["auth", "limits", "telemetry"],
    &["broker", "room_log"],
    &["outgoing", "rooms"],
    &["admission", "plane", "connection", "transport", "cluster"],
    &["shutdown", "admin", "listener", "server"],
    &["client", "web", "cli", "main", "lib"],
];

/// The client library stands at the top but may use only the ground and the wire.
const CLIENT_MAY_USE: usize = 1;

fn floor_of(module: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&module))
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            found.push(path);
        }
    }
}

/// The modules that `text` reaches through `crate::`, grouped imports included.
fn imports(text: &str) -> Vec<String> {
    let mut modules = Vec::new();
    for (at, _) in text.match_indices("crate::") {
        let line_start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
        if text[line_start..at].trim_start().starts_with("//") {
            continue;
        }
        let rest = &text[at + "crate::".len()..];
        if let Some(group) = rest.strip_prefix('{') {
            let mut depth = 0;
            let mut word = String::new();
            for c in group.chars() {
                match c {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' if depth == 0 => modules.push(std::mem::take(&mut word)),
                    _ if depth == 0 => word.push(c),
                    _ => {}
                }
            }
            modules.push(word);
        } else {
            modules.push(rest.to_owned());
        }
    }
    modules
        .into_iter()
        .map(|path| {
            path.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>()
        })
        .filter(|module| !module.is_empty())
        .collect()
}

#[test]
fn imports_point_down() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    rust_files(&src, &mut files);
    assert!(files.len() > 10, "the sources were found");
    let mut wrong = Vec::new();
    for file in files {
        let relative = file.strip_prefix(&src).unwrap();
        let first = relative.components().next().unwrap().as_os_str().to_str().unwrap();
        let module = first.trim_end_matches(".rs");
        let Some(floor) = floor_of(module) else {
            wrong.push(format!("{}: stands on no floor", relative.display()));
            continue;
        };
        let top = if module == "client" { CLIENT_MAY_USE } else { floor };
        for import in imports(&fs::read_to_string(&file).unwrap()) {
            let allowed = import == module
                || floor_of(&import).is_some_and(|imported| imported <= top)
                // Macros of the crate root and items re-exported there.
                || floor_of(&import).is_none();
            if !allowed {
                wrong
                    .push(format!("{}: imports `{import}`, which is above it", relative.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn grouped_imports_are_seen() {
    let text = "use crate::{ids::RoomId, config::{self, Limits}, server};\n// use crate::cli\nuse crate::web;";
    assert_eq!(imports(text), ["ids", "config", "server", "web"]);
}
