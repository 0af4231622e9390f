//! A picture of a graph without cycles: each node is to the right of those that it waits for.

use std::fmt::Write as _;

use maud::{Markup, html};

const BOX: (usize, usize) = (170, 26);
const STEP: (usize, usize) = (220, 36);
/// Maximum number of characters in a box.
const NAME_MAX: usize = 22;

/// A node of a graph.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) name: String,
    /// Class of its colour.
    pub(crate) class: &'static str,
    pub(crate) note: String,
    pub(crate) link: Option<String>,
    /// Numbers of the nodes that it waits for.
    pub(crate) after: Vec<usize>,
}

/// The picture, with a name for those who do not see it.
pub(crate) fn picture(label: &str, nodes: &[Node]) -> Markup {
    let places = places(nodes);
    let columns = places.iter().map(|place| place.0).max().unwrap_or_default() + 1;
    let rows = places.iter().map(|place| place.1).max().unwrap_or_default() + 1;
    let (width, height) = (columns * STEP.0, rows * STEP.1 + 10);
    html! {
        div.wide tabindex="0" role="region" aria-label="Graph" {
            svg.graph role="group" aria-label=(label) width=(width) height=(height) viewBox={ "0 0 " (width) " " (height) } {
                path.edges d=(edges(nodes, &places)) {}
                @for (node, place) in nodes.iter().zip(&places) {
                    @match &node.link {
                        Some(link) => a href=(link) { (shape(node, *place)) },
                        None => (shape(node, *place)),
                    }
                }
            }
        }
    }
}

/// Column and row of each node.
fn places(nodes: &[Node]) -> Vec<(usize, usize)> {
    let mut columns = vec![0_usize; nodes.len()];
    // Nodes may be in any order: the columns settle after as many rounds as the longest path has nodes.
    for _ in 0..nodes.len() {
        let mut is_settled = true;
        for (number, node) in nodes.iter().enumerate() {
            let least = node
                .after
                .iter()
                .filter_map(|before| columns.get(*before))
                .max()
                .map_or(0, |column| column + 1);
            if let Some(column) = columns.get_mut(number).filter(|column| **column < least.min(nodes.len())) {
                (*column, is_settled) = (least.min(nodes.len()), false);
            }
        }
        if is_settled {
            break;
        }
    }
    let mut used = vec![0_usize; nodes.len() + 1];
    let place = |column: usize| {
        let row = used.get_mut(column).map_or(0, |row| std::mem::replace(row, *row + 1));
        (column, row)
    };
    columns.into_iter().map(place).collect()
}

fn edges(nodes: &[Node], places: &[(usize, usize)]) -> String {
    let mut path = String::new();
    for (node, place) in nodes.iter().zip(places) {
        for from in node.after.iter().filter_map(|before| places.get(*before)) {
            let (x1, y1) = (from.0 * STEP.0 + BOX.0 + 4, from.1 * STEP.1 + 5 + BOX.1 / 2);
            let (x2, y2) = (place.0 * STEP.0 + 4, place.1 * STEP.1 + 5 + BOX.1 / 2);
            let middle = usize::midpoint(x1, x2);
            // Writing to a String cannot fail.
            let _ = write!(path, "M{x1} {y1}C{middle} {y1} {middle} {y2} {x2} {y2}");
        }
    }
    path
}

fn shape(node: &Node, (column, row): (usize, usize)) -> Markup {
    let (x, y) = (column * STEP.0 + 4, row * STEP.1 + 5);
    let name: String = node.name.chars().take(NAME_MAX).collect();
    let cut = if name.len() < node.name.len() { "…" } else { "" };
    html! {
        g class=(node.class) {
            title { (node.name) ": " (node.note) }
            rect x=(x) y=(y) width=(BOX.0) height=(BOX.1) rx="4" {}
            text x=(x + 8) y=(y + 17) { (name) (cut) }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Node, places};

    proptest! {
        #[test]
        fn nodes_are_right_of_what_they_wait_for_and_apart(
            edges in prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 0..3), 1..20),
        ) {
            let nodes: Vec<Node> = edges.iter().enumerate().map(|(number, before)| Node {
                name: String::new(), class: "", note: String::new(), link: None,
                after: if number == 0 { vec![] } else { before.iter().map(|it| it.index(number)).collect() },
            }).collect();
            let places = places(&nodes);
            for (node, place) in nodes.iter().zip(&places) {
                prop_assert!(node.after.iter().all(|before| places[*before].0 < place.0));
            }
            let mut apart = places.clone();
            apart.sort_unstable();
            apart.dedup();
            prop_assert_eq!(apart.len(), places.len());
        }
    }
}
