//! How far a long test is: a bar on a terminal, now and then a line elsewhere, nothing for
//! the short form.
#![allow(clippy::print_stderr, reason = "what it is for")]

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

/// Lines that a long run prints where there is no terminal.
const LINES: u64 = 20;

/// The progress of one test.
pub struct Progress {
    bar: Option<ProgressBar>,
    name: &'static str,
    total: u64,
    done: u64,
    quiet: bool,
    start: Instant,
}

impl Progress {
    /// `total` steps; `quiet` says nothing.
    pub fn new(name: &'static str, total: u64, quiet: bool) -> Self {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let style = "{prefix} {bar:40} {pos}/{len}, {eta} left, {msg}";
            ProgressBar::new(total)
                .with_prefix(name)
                .with_style(ProgressStyle::with_template(style).unwrap())
        });
        Self { bar, name, total, done: 0, quiet, start: Instant::now() }
    }

    /// One step is done; `text` says what there is so far.
    pub fn step(&mut self, text: String) {
        self.done += 1;
        if let Some(bar) = &self.bar {
            bar.set_message(text);
            bar.inc(1);
        } else if !self.quiet && self.done.is_multiple_of((self.total / LINES).max(1)) {
            let seconds = self.start.elapsed().as_secs();
            eprintln!("{}: {}/{} after {seconds} s, {text}", self.name, self.done, self.total);
        }
    }

    /// Prints the figures of a long run.
    pub fn finish(self, figures: &str) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        if !self.quiet {
            let seconds = self.start.elapsed().as_secs_f64();
            eprintln!("{}: {figures}; {seconds:.0} s", self.name);
        }
    }
}
