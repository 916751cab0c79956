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

/// How a process left its clients.
struct Left {
    process: Process,
    /// From the signal to the end of the process, in seconds.
    took: f64,
    /// CPU time used for it, in seconds; the last moments are not seen.
    cpu: f64,
}

fn shutdown(mut process: Process) -> Result<Left, Failed> {
    let mut crowd = Crowd::new()?;
    crowd.connect(process.address, CONNECTIONS)?;
    crowd.join("both", joins(0, CONNECTIONS))?;
    let (before, start) = (process.cpu()?, Instant::now());
    let mut after = before;
    process.stop()?;
    let mut looked = start;
    while !process.ended()? {
        crowd.pump(Duration::from_millis(1))?;
        if looked.elapsed() > Duration::from_millis(5) {
            looked = Instant::now();
            // Threads that end meanwhile are not found.
            after = process.cpu().map_or(after, |cpu| cpu.max(after));
        }
    }
    let took = start.elapsed().as_secs_f64();
    while crowd.ended < CONNECTIONS && start.elapsed() < Duration::from_secs(20) {
        crowd.pump(Duration::from_millis(1))?;
    }
    if crowd.closed != CONNECTIONS {
        let code = process.logged("exit_code").unwrap_or(f64::NAN);
        let closed = crowd.closed;
        let text =
            format!("exit code {code} after {took:.3} s, {closed} close frames of {CONNECTIONS}");
        return Err(text.into());
    }
    Ok(Left { process, took, cpu: (after - before).as_secs_f64() })
}

fn shutdowns() -> Result<(), Failed> {
    let (mut times, mut cpus) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for _ in 0..3 {
        let mut left = shutdown(Process::milepost(&[])?)?;
        let mut logged = |field| left.process.logged(field).unwrap_or(f64::NAN);
        let notified = logged("stop_accepting_ms") + logged("notify_ms");
        let (drain, close) = (logged("drain_ms"), logged("close_ms"));
        let raw = shutdown(Process::raw(420)?)?;
        println!(
            "  {:.3} s to the exit: notify until {notified} ms, drain {drain} ms, close {close} \
             ms; raw {:.3} s",
            left.took, raw.took
        );
        times[0].push(left.took - notified / 1e3);
        times[1].push(raw.took);
        cpus[0].push(left.cpu);
        cpus[1].push(raw.cpu);
    }
    let ([time, raw_time], [cpu, raw_cpu]) = (times.map(median), cpus.map(median));
    println!(
        "shutdown: {CONNECTIONS} clients gone {time:.3} s after the notify phase (raw {raw_time:.3} \
         s, ratio {:.2}, bar 2); CPU in all {cpu:.3} s (raw {raw_cpu:.3} s)",
        time / raw_time
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
