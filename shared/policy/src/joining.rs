//! Decides whether a process may use the store that it opened together with the bus that it found.

use model::{KnownStore, StoreId};

/// How a process relates to the farm that it finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// It joins the farm, whatever store the farm uses.
    Join,
    /// It started the bus itself: the store's URL may have changed, or its content may be gone.
    OwnBus,
    /// It was started with the order to make its store the farm's store.
    TakeOver,
}

/// The decision for a process and its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joining {
    /// The store is the farm's store.
    Member,
    /// The store is to become the farm's known store.
    MakeKnown,
    /// The store was emptied: its previous id is written to it again.
    Restore(StoreId),
    /// The farm uses another store, so the process is refused.
    Refused,
}

/// Decides about a store at `url` with the id `found` (`None` if it has none yet), for a farm that
/// knows the store `known`.
pub fn joining(known: Option<&KnownStore>, found: Option<StoreId>, url: &str, claim: Claim) -> Joining {
    let Some(known) = known else { return Joining::MakeKnown };
    let (is_same, same_url) = (found == Some(known.id), known.url == url);
    match claim {
        Claim::Join if is_same => Joining::Member,
        Claim::OwnBus | Claim::TakeOver if is_same && same_url => Joining::Member,
        Claim::OwnBus if is_same => Joining::MakeKnown,
        Claim::OwnBus if found.is_none() && same_url => Joining::Restore(known.id),
        Claim::TakeOver => Joining::MakeKnown,
        Claim::Join | Claim::OwnBus => Joining::Refused,
    }
}

/// Decides about a store that is read through a gateway, whose URL may differ from process to process. A store without
/// an id is that of a server that reports none, and a farm without a known store has all its stores on other servers:
/// there is nothing to compare.
pub fn joining_through_gateway(known: Option<&KnownStore>, found: Option<StoreId>, claim: Claim) -> Joining {
    let (Some(known), Some(found)) = (known, found) else { return Joining::Member };
    if found == known.id {
        return Joining::Member;
    }
    match claim {
        Claim::TakeOver => Joining::MakeKnown,
        Claim::Join | Claim::OwnBus => Joining::Refused,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const URLS: [&str; 2] = ["file:///a", "file:///b"];

    fn any_claim() -> impl Strategy<Value = Claim> {
        prop_oneof![Just(Claim::Join), Just(Claim::OwnBus), Just(Claim::TakeOver)]
    }

    #[test]
    fn the_gateway_of_another_farm_is_refused() {
        let ids = [StoreId::generate(), StoreId::generate()];
        let known = KnownStore { url: URLS[0].to_owned(), id: ids[0] };
        for claim in [Claim::Join, Claim::OwnBus, Claim::TakeOver] {
            let other = if claim == Claim::TakeOver { Joining::MakeKnown } else { Joining::Refused };
            for (known, found, answer) in [
                (Some(&known), Some(ids[0]), Joining::Member),
                (Some(&known), Some(ids[1]), other),
                (Some(&known), None, Joining::Member),
                (None, Some(ids[1]), Joining::Member),
            ] {
                assert_eq!(joining_through_gateway(known, found, claim), answer, "{claim:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_stranger_changes_nothing(
            claim in any_claim(),
            knows in any::<bool>(),
            found in 0..3_usize,
            url in 0..2_usize,
        ) {
            let ids = [StoreId::generate(), StoreId::generate()];
            let known = knows.then(|| KnownStore { url: URLS[0].to_owned(), id: ids[0] });
            let found = ids.get(found).copied();
            let answer = joining(known.as_ref(), found, URLS[url], claim);
            match &known {
                None => prop_assert_eq!(answer, Joining::MakeKnown),
                Some(known) => {
                    let is_same = found == Some(known.id);
                    if is_same {
                        prop_assert_ne!(answer, Joining::Refused);
                    } else if claim == Claim::Join {
                        prop_assert_eq!(answer, Joining::Refused);
                    }
                    if claim == Claim::Join {
                        prop_assert_ne!(answer, Joining::MakeKnown);
                    }
                    // Its own bus does not give a process the right to another store.
                    if claim == Claim::OwnBus && found.is_some() && !is_same {
                        prop_assert_eq!(answer, Joining::Refused);
                    }
                    if claim == Claim::TakeOver {
                        prop_assert!(matches!(answer, Joining::Member | Joining::MakeKnown));
                    }
                }
            }
        }
    }
}
