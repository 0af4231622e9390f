//! What the tree must keep and people forget.

mod circles;
mod dependencies;
mod documents;
mod metrics;
mod settings;
mod words;
