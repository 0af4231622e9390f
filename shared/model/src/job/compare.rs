//! The built-in judge of a task, as the author of a job asks for it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{location::FieldFault, number::Fraction};
use crate::{JobFault, JobPath};

/// Default of the relative tolerance.
const DEFAULT_RELATIVE: f64 = 1e-6;

/// Comparison of a file with an expected one, without a process. Its score is 1 if they are the same by the chosen rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CompareRequest {
    /// Path of the file to judge. In a task with a command it must be one of its outputs, or lie in one.
    pub found: String,
    /// Path of the expected file. In a task with a command, the command does not see it unless it is also an input.
    pub expected: String,
    /// Rule of the comparison. Default: `whitespace`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<CompareBy>,
    /// For `float`, the absolute difference that two numbers may have. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absolute: Option<Fraction>,
    /// For `float`, the difference that two numbers may have, relative to the expected one. Default: 0.000001.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relative: Option<Fraction>,
    /// Minimum score, 0 to 1: the task fails with a lower one. Default: 0, it succeeds with any score.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass: Option<Fraction>,
}

/// Rule by which a file is compared with the expected one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CompareBy {
    /// All bytes must be the same: the score is 0 or 1.
    Exact,
    /// Words must be the same in the same order; the white space between them may differ.
    Whitespace,
    /// Like `whitespace`, but two numbers are the same if they differ by at most a tolerance.
    Float,
    /// Lines must be the same in any order, without white space at their ends and without empty lines.
    UnorderedLines,
    /// Words must be the same in any order.
    UnorderedTokens,
}

/// A checked comparison of a file with an expected one.
#[derive(Debug, Clone)]
pub struct Compare {
    /// Path of the file to judge.
    pub found: JobPath,
    /// Path of the expected file.
    pub expected: JobPath,
    /// The rule of the comparison.
    pub by: CompareRule,
    /// Minimum score with which the task succeeds.
    pub pass: f64,
}

/// Rule of a comparison, with its tolerance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CompareRule {
    /// All bytes must be the same.
    Exact,
    /// Words must be the same in the same order.
    Whitespace,
    /// Words must be the same in the same order, and numbers nearly so.
    Float {
        /// Difference that two numbers may have.
        absolute: f64,
        /// Difference relative to the expected number that two numbers may have.
        relative: f64,
    },
    /// Lines must be the same in any order.
    UnorderedLines,
    /// Words must be the same in any order.
    UnorderedTokens,
}

impl Compare {
    /// Checks what the author of a task asks for.
    pub(super) fn new(asked: &CompareRequest) -> Result<Self, FieldFault> {
        let path = |field: &str, text: &str| {
            JobPath::parse_inside(text).map_err(|bad| FieldFault::new(&format!("compare.{field}"), bad))
        };
        let by = asked.by.unwrap_or(CompareBy::Whitespace);
        let tolerances = [("compare.absolute", asked.absolute), ("compare.relative", asked.relative)];
        if let Some((field, _)) = tolerances.iter().find(|(_, value)| value.is_some())
            && by != CompareBy::Float
        {
            return Err(FieldFault::new(field, JobFault::NeedsFloat));
        }
        let pass = asked.pass.map_or(0.0, Fraction::get);
        if pass > 1.0 {
            let (least, most) = ("0".to_owned(), "1".to_owned());
            let fault = JobFault::OutsideRange { value: pass.to_string(), least, most };
            return Err(FieldFault::new("compare.pass", fault));
        }
        Ok(Self {
            found: path("found", &asked.found)?,
            expected: path("expected", &asked.expected)?,
            by: match by {
                CompareBy::Exact => CompareRule::Exact,
                CompareBy::Whitespace => CompareRule::Whitespace,
                CompareBy::Float => CompareRule::Float {
                    absolute: asked.absolute.map_or(0.0, Fraction::get),
                    relative: asked.relative.map_or(DEFAULT_RELATIVE, Fraction::get),
                },
                CompareBy::UnorderedLines => CompareRule::UnorderedLines,
                CompareBy::UnorderedTokens => CompareRule::UnorderedTokens,
            },
            pass,
        })
    }
}
