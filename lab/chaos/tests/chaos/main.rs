//! A farm whose processes are killed, and the rules that find what it lost.

mod actions;
mod checker;
mod storm;
