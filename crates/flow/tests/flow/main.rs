//! Keys move between real servers.

mod legacy;
mod slots;
mod typed;
mod verify;
