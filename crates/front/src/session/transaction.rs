//! The transaction that a client has open at a server, and what it watches for one.

/// The transaction of a client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Transaction {
    #[default]
    None,
    /// Keys are watched for a transaction that has not begun.
    Watching,
    /// Commands are queued, with keys that are watched or without.
    Open { watching: bool },
}

impl Transaction {
    /// Nothing is open.
    pub(super) fn is_none(self) -> bool {
        self == Transaction::None
    }

    /// Commands are queued.
    pub(super) fn is_open(self) -> bool {
        matches!(self, Transaction::Open { .. })
    }

    /// Keys are watched.
    pub(super) fn is_watching(self) -> bool {
        matches!(self, Transaction::Watching | Transaction::Open { watching: true })
    }

    /// `MULTI`.
    pub(super) fn begin(&mut self) {
        *self = Transaction::Open { watching: self.is_watching() };
    }

    /// `WATCH`.
    pub(super) fn watch(&mut self) {
        *self = match *self {
            Transaction::Open { .. } => Transaction::Open { watching: true },
            Transaction::None | Transaction::Watching => Transaction::Watching,
        };
    }

    /// `EXEC` or `DISCARD`. Without a transaction what is watched stays.
    pub(super) fn end(&mut self) {
        if self.is_open() {
            *self = Transaction::None;
        }
    }

    /// `UNWATCH`. What a transaction has queued is carried out when it ends, or not at all.
    pub(super) fn unwatch(&mut self) {
        if *self == Transaction::Watching {
            *self = Transaction::None;
        }
    }

    /// `RESET`.
    pub(super) fn reset(&mut self) {
        *self = Transaction::None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_watched_ends_with_the_transaction_that_it_is_watched_for() {
        let mut transaction = Transaction::None;
        transaction.end();
        transaction.watch();
        transaction.end();
        assert_eq!(transaction, Transaction::Watching);
        transaction.begin();
        transaction.unwatch();
        assert!(transaction.is_open() && transaction.is_watching());
        transaction.end();
        assert!(transaction.is_none());
        transaction.watch();
        transaction.unwatch();
        assert!(transaction.is_none());
    }
}
