//! Amounts of executor service units on the command line.

use model::{Esu, ExecutorType};

/// Parses an amount `TYPE=ESU`, which must not be negative.
pub(crate) fn parse_amount(text: &str) -> Result<(ExecutorType, Esu), String> {
    let wanted = || format!("invalid amount {text:?}: expected TYPE=ESU, e.g. x86=4");
    let (kind, units) = text.split_once('=').ok_or_else(wanted)?;
    let kind = kind.parse().map_err(|error: model::ParseIdError| error.to_string())?;
    let units: f64 = units.parse().map_err(|_| wanted())?;
    let amount = Esu::new(units).map_err(|error| error.to_string())?;
    if amount < Esu::ZERO {
        return Err(format!("invalid amount {text:?}: must be at least 0 ESU"));
    }
    Ok((kind, amount))
}
