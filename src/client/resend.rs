//! Resending what a draining server refused (plane.md, "Resend"): off unless asked for.
//!
//! Pure rules: what a refusal leads to, and which session may get the resend. The client's
//! task keeps the time and the sessions.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::budget::{BadBudget, Budget};

/// Whether the client sends requests again that were refused with `SERVER_DRAINING`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResendRefused {
    /// How often one request is sent again at most; zero or less: never.
    pub max_resends: i64,
    /// How long each refusal waits for a new session that can take the request,
    /// 0 to 2147483647 ms.
    pub new_session_wait: Duration,
}

/// The checked form.
#[derive(Debug, Clone, Copy)]
pub(super) struct Policy {
    most: u64,
    wait: Duration,
}

impl Policy {
    /// `None` where resending is off. The time is checked even then.
    pub(super) fn new(asked: Option<ResendRefused>) -> Result<Option<Self>, BadBudget> {
        let Some(asked) = asked else { return Ok(None) };
        let wait = Budget::new(asked.new_session_wait)?.get();
        let most = u64::try_from(asked.max_resends).unwrap_or(0);
        Ok((most > 0).then_some(Self { most, wait }))
    }
}

/// A request that was refused and waits for another session.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    /// The session that refused it: that one never gets it again.
    pub(super) session: Arc<str>,
    /// When the refusal becomes the result.
    pub(super) until: Instant,
}

impl Waiting {
    /// Whether `session` may get the resend.
    pub(super) fn may_go_to(&self, session: &str) -> bool {
        *self.session != *session
    }
}

/// The refusals of one request so far.
#[derive(Debug, Default)]
pub(super) struct Resends {
    done: u64,
    /// Set while the request waits for another session.
    pub(super) waiting: Option<Waiting>,
}

impl Resends {
    /// `session` refused the request: `true` if it waits now, `false` if the refusal is
    /// the result.
    pub(super) fn refused(
        &mut self,
        policy: Option<Policy>,
        session: &Arc<str>,
        now: Instant,
    ) -> bool {
        let Some(policy) = policy.filter(|policy| self.done < policy.most) else { return false };
        self.waiting = Some(Waiting { session: session.clone(), until: now + policy.wait });
        true
    }

    /// Waits for a session that is not `session`, outside of the policy's count.
    pub(super) fn elsewhere(&mut self, session: &Arc<str>, until: Instant) {
        self.waiting = Some(Waiting { session: session.clone(), until });
    }

    /// The request goes out; a resend if it was waiting for one.
    pub(super) fn sent(&mut self) {
        if self.waiting.take().is_some() {
            self.done += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::MAX_BUDGET;

    fn policy(max_resends: i64) -> Option<Policy> {
        let new_session_wait = Duration::from_secs(5);
        Policy::new(Some(ResendRefused { max_resends, new_session_wait })).unwrap()
    }

    #[test]
    fn off_by_default_and_with_zero_or_less() {
        assert!(Policy::new(None).unwrap().is_none());
        for off in [0, -1, i64::MIN] {
            assert!(policy(off).is_none(), "{off}");
        }
        let long = MAX_BUDGET + Duration::from_millis(1);
        for max_resends in [-1, 1] {
            let asked = ResendRefused { max_resends, new_session_wait: long };
            assert!(Policy::new(Some(asked)).is_err());
        }
        let longest = ResendRefused { max_resends: 1, new_session_wait: MAX_BUDGET };
        assert!(Policy::new(Some(longest)).unwrap().is_some());
    }

    #[test]
    fn n_resends_and_no_more() {
        let now = Instant::now();
        let session = Arc::from("a");
        let mut resends = Resends::default();
        resends.sent();
        for _ in 0..3 {
            assert!(resends.refused(policy(3), &session, now));
            assert_eq!(resends.waiting.as_ref().unwrap().until, now + Duration::from_secs(5));
            resends.sent();
        }
        assert!(!resends.refused(policy(3), &session, now));
    }

    #[test]
    fn another_session_only() {
        let waiting = Waiting { session: "a".into(), until: Instant::now() };
        assert!(!waiting.may_go_to("a"));
        assert!(waiting.may_go_to("b"));
    }
}
