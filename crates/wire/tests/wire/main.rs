//! What is encoded and parsed, against independent implementations.

mod outbox;
mod resp;
mod topology;
