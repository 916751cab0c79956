//! A runtime that does not run: all of the process's threads but the watchdog's are
//! stopped from outside, as a kernel or a hypervisor might.

use std::fs;
use std::os::raw::c_int;
use std::time::Duration;

use rustix::process::{Pid, Signal};

use super::{peer::Peer, wait_within_bound};
use crate::harness::Server;

/// Stops one thread until the process ends. The thread that calls this has to stay: with
/// it the stop ends.
#[allow(unsafe_code, reason = "no library in use here has ptrace")]
fn stop_thread(thread: i32) {
    let mut status: c_int = 0;
    // SAFETY: neither request takes memory of ours, and waitpid writes one c_int.
    unsafe {
        let none = std::ptr::null_mut::<libc::c_void>();
        assert_eq!(libc::ptrace(libc::PTRACE_SEIZE, thread, none, none), 0, "no ptrace");
        assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, thread, none, none), 0);
        assert_eq!(libc::waitpid(thread, &raw mut status, libc::__WALL), thread);
    }
}

/// Takes note of the end of a stopped thread, which the process's end has to wait for.
/// Returns whether it has come.
#[allow(unsafe_code, reason = "no library in use here waits for a thread")]
fn has_ended(thread: i32) -> bool {
    let mut status: c_int = 0;
    // SAFETY: waitpid writes one c_int.
    unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL | libc::WNOHANG) == thread }
}

/// The threads of a process with their names.
fn threads(pid: Pid) -> Vec<(i32, String)> {
    let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
    fs::read_dir(tasks)
        .unwrap()
        .map(|task| {
            let path = task.unwrap().path();
            let id = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
            (id, fs::read_to_string(path.join("comm")).unwrap().trim().to_owned())
        })
        .collect()
}

#[test]
fn the_watchdog_ends_a_process_whose_threads_do_not_run() {
    let mut server = Server::start();
    let mut peer = Peer::connect(&server, "a");
    peer.join("north");
    let threads = threads(server.pid());
    let watchdog = threads.iter().filter(|(_, name)| name == "watchdog").count();
    assert_eq!(watchdog, 1, "{threads:?}");
    let main = server.pid().as_raw_nonzero().get();
    let mut stopped: Vec<i32> =
        threads.iter().filter(|(_, name)| name != "watchdog").map(|(thread, _)| *thread).collect();
    for thread in &stopped {
        stop_thread(*thread);
    }
    let signalled = server.terminate();
    stopped.retain(|thread| *thread != main);
    let mut killed = false;
    while !stopped.is_empty() {
        if !killed && signalled.elapsed() > 2 * super::BOUND {
            // Here, where the stopped threads are seen to their end, or it would never come.
            server.signal(Signal::KILL);
            killed = true;
        }
        stopped.retain(|thread| !has_ended(*thread));
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(!killed, "nothing ends the process");
    let exit = wait_within_bound(&mut server, signalled);
    assert_eq!(exit.code, Some(1));
    assert!(exit.at - signalled >= Duration::from_secs(5), "not before its time");
    assert_eq!(server.shutdown_messages(), ["shutdown: force exit"]);
    let line = &server.shutdown_lines()[0];
    assert_eq!(line["event"], "shutdown.force_exit");
    assert_eq!(line["phase"], "force_exit");
    assert_eq!(line["level"], "ERROR");
    assert_eq!(line["exit_code"], 1);
    assert_eq!(line["deadline_ms"], 5000);
    assert_eq!(line["instance_id"], server.wait_for("server.ready")["instance_id"]);
}
