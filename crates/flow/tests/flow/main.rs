//! Keys move between real servers.

mod large;
mod legacy;
mod slots;
mod verify;
