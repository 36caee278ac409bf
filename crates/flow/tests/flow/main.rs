//! Keys move between real servers.

mod documents;
mod legacy;
mod slots;
mod typed;
mod verify;
