//! Tests of input roots and outputs on a real disk, with a real store.

#[cfg(test)]
mod collect;
#[cfg(test)]
mod common;
#[cfg(test)]
mod figures;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod local;
#[cfg(test)]
mod prepare;
