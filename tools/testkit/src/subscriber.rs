//! A subscriber of `tracing` for one thread of a test program whose other threads have none.

use std::sync::LazyLock;

use tracing::Dispatch;
use tracing::subscriber::NoSubscriber;

/// While a program has one subscriber, `tracing` asks only the thread that reaches an event first whether it
/// is wanted: if that thread has no subscriber, the others do not get this event. With two, it asks both.
static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::new()));

/// Does `work` while `subscriber` gets the events of this thread.
pub fn with_subscriber<T>(subscriber: impl Into<Dispatch>, work: impl FnOnce() -> T) -> T {
    LazyLock::force(&SECOND);
    #[expect(clippy::disallowed_methods, reason = "there is a second subscriber")]
    tracing::dispatcher::with_default(&subscriber.into(), work)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    struct Counts(Arc<AtomicU32>);

    impl Subscriber for Counts {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn an_event_that_a_thread_without_a_subscriber_reaches_first_is_seen() {
        let seen = Arc::new(AtomicU32::new(0));
        let log = || tracing::info!("reached");
        with_subscriber(Counts(seen.clone()), || {
            std::thread::scope(|scope| scope.spawn(log).join().unwrap());
            log();
        });
        assert_eq!(seen.load(Ordering::SeqCst), 1);
    }
}
