//! What the tree must keep and people forget.

mod attacks;
mod budget;
mod circles;
mod dependencies;
mod documents;
mod metrics;
mod monitoring;
mod paths;
mod planned;
mod promql;
mod settings;
mod words;
