//! Keys move between real servers.

mod cutover;
mod documents;
mod large;
mod legacy;
mod slots;
mod sync;
mod verify;
