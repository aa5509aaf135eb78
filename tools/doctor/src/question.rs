//! What the doctor asks the machine at the other end, and how that answers.

use std::sync::{Mutex, MutexGuard, TryLockError};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use vmlane_bench::server::Examiner;

use crate::facts::{Counters, Facts, Limits, Snapshot};
use crate::loopback;

/// Answers are read, never followed: no question changes a setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "about", rename_all = "snake_case")]
pub enum Question {
    Facts,
    /// Of the stack and of the interface that leads to the one who asks.
    Counters {
        interface: Option<String>,
    },
    /// What limits the way to the one who asks, and what that has counted.
    Limits {
        interface: Option<String>,
    },
    /// How fast the machine talks to itself: it is measured for a moment.
    Loopback {
        seconds: f64,
    },
}

impl Question {
    pub fn to_value(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// Answers questions about this machine, one after another: each costs this machine a moment's work.
pub fn examiner() -> Examiner {
    let busy = Mutex::new(Snapshot::take());
    std::sync::Arc::new(move |asked| {
        let question: Question = serde_json::from_value(asked.request.clone())
            .map_err(|_| "a question that this version of vmlane does not know".to_owned())?;
        let mut began = turn(&busy)?;
        let value = match question {
            Question::Facts => {
                let facts = Facts::read(asked.here, asked.there);
                *began = Snapshot::take();
                serde_json::to_value(facts)
            }
            Question::Counters { interface } => {
                let known = interface.filter(|name| is_interface(name));
                serde_json::to_value(Counters::read(known.as_deref()))
            }
            Question::Limits { interface } => {
                let known = interface.filter(|name| is_interface(name));
                let busiest = began.beside_us();
                let limits = Limits::read(asked.there, known.as_deref());
                serde_json::to_value(Limits { busiest, ..limits })
            }
            Question::Loopback { seconds } if seconds > 0.0 && seconds <= loopback::LONGEST => {
                serde_json::to_value(loopback::measure(seconds)?)
            }
            Question::Loopback { seconds } => {
                return Err(format!("loopback for {seconds} s: up to {} s", loopback::LONGEST));
            }
        };
        value.map_err(|error| format!("writing the answer: {error}"))
    })
}

/// A name that the kernel takes for an interface: no path of /sys, no option and no second line for a tool.
pub fn is_interface(name: &str) -> bool {
    let is_odd = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    !name.is_empty()
        && name.len() < 16
        && !name.starts_with('-')
        && name != "."
        && name != ".."
        && !name.contains(is_odd)
}

/// Waits a little for the one who asked before.
fn turn(busy: &Mutex<Snapshot>) -> Result<MutexGuard<'_, Snapshot>, String> {
    for _ in 0..40 {
        match busy.try_lock() {
            Ok(turn) => return Ok(turn),
            Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(std::time::Duration::from_millis(50)),
        }
    }
    Err("busy: it is being examined by another one; try again later".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_keep_their_shape() {
        assert_eq!(Question::Facts.to_value().to_string(), r#"{"about":"facts"}"#);
        let text = r#"{"about":"counters","interface":"eth0"}"#;
        let question: Question = serde_json::from_str(text).unwrap();
        assert_eq!(question, Question::Counters { interface: Some("eth0".to_owned()) });
    }

    #[test]
    fn no_question_names_a_file_or_another_command() {
        for bad in [
            "",
            ".",
            "..",
            "../../kernel",
            "a/b",
            "a-name-that-is-too-long",
            "a\nlink del b",
            "-all",
            "a b",
            "a\0",
        ] {
            assert!(!is_interface(bad), "{bad}");
        }
        assert!(is_interface("eth0.10"));
    }

    #[test]
    fn what_is_unknown_or_too_much_is_refused() {
        let examiner = examiner();
        let ask = |request: Value| {
            examiner(&vmlane_bench::server::Question { request: &request, here: None, there: None })
        };
        for bad in [
            serde_json::json!({ "about": "shell", "command": "id" }),
            serde_json::json!({ "about": "loopback", "seconds": 1e9 }),
            serde_json::json!({ "about": "loopback", "seconds": -1.0 }),
            serde_json::json!([]),
        ] {
            assert!(ask(bad.clone()).is_err(), "{bad}");
        }
        assert!(ask(Question::Counters { interface: Some("lo".to_owned()) }.to_value()).unwrap()["interface"]["rx_bytes"].is_u64());
    }
}
