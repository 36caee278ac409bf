//! Scanner and parser against an independent implementation, in every way that bytes can arrive.

mod against_peer;
mod damaged;
mod delivery;
mod frames;
mod limits;
