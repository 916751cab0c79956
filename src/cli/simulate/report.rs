//! The observer of a simulation, and what people see while it runs.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

use super::identity::Identity;
use super::tally::{MARK, Tally};
use crate::client::{Client, Error, Event, Events, GapCause};
use crate::protocol::decode::Location;
use crate::protocol::{ErrorCode, Mode};

/// Joins the room and checks what arrives; `None` if the token may not subscribe.
pub(super) async fn observe(
    identity: &Identity,
    room: &str,
    tally: Arc<Tally>,
) -> anyhow::Result<Option<Client>> {
    let (client, events) = identity.observer()?.connect().await?;
    match client.join(room, Mode::Subscribe).await {
        Ok(_) => {}
        Err(Error::Refused(refused)) if refused.is(ErrorCode::Forbidden) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    tokio::spawn(check(events, tally));
    Ok(Some(client))
}

async fn check(mut events: Events, tally: Arc<Tally>) {
    let saw = |location: &Location, again| {
        if let Some(mark) = location.extra.get(MARK).and_then(|mark| mark.as_str()) {
            tally.saw(mark, again);
        }
    };
    while let Some(event) = events.next().await {
        match event {
            Event::Location(location) => saw(&location, false),
            Event::Joined(joined) => joined.positions.iter().for_each(|one| saw(one, true)),
            Event::Snapshot(page) => page.positions.iter().for_each(|one| saw(one, true)),
            Event::Gap { cause: GapCause::Reset, .. } => tally.reset(),
            Event::CaughtUp(caught_up) => tally.dropped(caught_up.dropped),
            _ => {}
        }
    }
}

/// Shows how it goes, for ever: a bar on a terminal, a line every 5 s otherwise.
pub(super) async fn progress(tally: &Tally, duration: Option<Duration>, terminal: bool) {
    let start = Instant::now();
    let bar = terminal.then(|| bar(duration));
    let every = if terminal { Duration::from_millis(200) } else { Duration::from_secs(5) };
    let mut ticks = tokio::time::interval_at(start + every, every);
    loop {
        ticks.tick().await;
        let elapsed = start.elapsed();
        let (sent, acknowledged) = tally.so_far();
        #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
        let rate = acknowledged as f64 / elapsed.as_secs_f64();
        let text = format!("{sent} sent, {acknowledged} acknowledged, {rate:.0}/s");
        match &bar {
            Some(bar) => {
                bar.set_position(elapsed.as_secs());
                bar.set_message(text);
            }
            None => {
                let _ = writeln!(std::io::stderr(), "{:>5} s  {text}", elapsed.as_secs());
            }
        }
    }
}

fn bar(duration: Option<Duration>) -> ProgressBar {
    let (bar, template) = match duration {
        Some(duration) => {
            (ProgressBar::new(duration.as_secs()), "{bar:30} {elapsed}/{len}s  {msg}")
        }
        None => (ProgressBar::new_spinner(), "{spinner} {elapsed}  {msg}"),
    };
    let style = ProgressStyle::with_template(template);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
