//! What the engine's parts find on real servers.

mod feed;
mod handover;
mod links;
mod native;
mod nodes;
mod seal;
mod topology;
