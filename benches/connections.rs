//! What an idle connection costs, and how long it takes to send 5,000 of them away.
//!
//! `cargo bench --bench connections [-- NAME…]`, with NAME part of a measure's name. It
//! needs about 5,100 file descriptors in this process and in the server's.

#![allow(clippy::print_stdout)] // the figures

mod load;

use std::time::Duration;

use load::crowd::Crowd;
use load::process::Process;
use load::{Failed, median, raw, wanted};
use tokio::time::Instant;

const CONNECTIONS: usize = 5_000;
const ROOMS: usize = 50;
/// What is there before anything is compared: buffers, threads' arenas, the first room.
const WARM: usize = 64;

fn joins(from: usize, count: usize) -> impl Iterator<Item = (usize, String)> {
    (from..from + count).map(|peer| (peer, format!("room-{:03}", peer % ROOMS)))
}

/// Private bytes per connection that is in a room and idle.
fn memory() -> Result<(), Failed> {
    let process = Process::milepost(&[])?;
    let mut crowd = Crowd::new()?;
    crowd.connect(process.address, WARM)?;
    crowd.join("both", joins(0, WARM))?;
    let before = process.memory()?;
    crowd.connect(process.address, CONNECTIONS)?;
    crowd.join("both", joins(WARM, CONNECTIONS))?;
    let each = (process.memory()? - before) as f64 / CONNECTIONS as f64;
    println!("memory: {:.2} KB for each of {CONNECTIONS} idle connections (bar 4)", each / 1024.0);
    Ok(())
}

/// From the signal to the end of the process, and what of that is not the notify phase.
fn shutdown(mut process: Process) -> Result<(f64, Process), Failed> {
    let mut crowd = Crowd::new()?;
    crowd.connect(process.address, CONNECTIONS)?;
    crowd.join("both", joins(0, CONNECTIONS))?;
    let start = Instant::now();
    process.stop()?;
    while !process.ended()? {
        crowd.pump(Duration::from_millis(1))?;
    }
    let took = start.elapsed().as_secs_f64();
    while crowd.ended < CONNECTIONS && start.elapsed() < Duration::from_secs(20) {
        crowd.pump(Duration::from_millis(1))?;
    }
    if crowd.closed != CONNECTIONS {
        return Err(format!("{} close frames of {CONNECTIONS}", crowd.closed).into());
    }
    Ok((took, process))
}

fn shutdowns() -> Result<(), Failed> {
    let (mut ours, mut limit, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..3 {
        let (took, mut process) = shutdown(Process::milepost(&[])?)?;
        let mut logged = |field| process.logged(field).unwrap_or(f64::NAN);
        let notified = logged("stop_accepting_ms") + logged("notify_ms");
        let (drain, close) = (logged("drain_ms"), logged("close_ms"));
        let code = logged("exit_code");
        println!(
            "  {took:.3} s to the exit, code {code}, notify until {notified} ms, drain {drain} ms, \
             close {close} ms"
        );
        whole.push(took);
        ours.push(took - notified / 1e3);
        limit.push(shutdown(Process::raw(420)?)?.0);
    }
    let (ours, limit) = (median(ours), median(limit));
    println!(
        "shutdown: {CONNECTIONS} clients gone in {:.3} s, {ours:.3} s of it after the notify phase; \
         raw {limit:.3} s, ratio {:.2} (bar 2)",
        median(whole),
        ours / limit
    );
    Ok(())
}

fn main() -> Result<(), Failed> {
    if let Some(frame) = raw::asked() {
        return raw::serve(frame);
    }
    if wanted("memory") {
        memory()?;
    }
    if wanted("shutdown") {
        shutdowns()?;
    }
    Ok(())
}
