//! Built-in judges: compares files of the job on the worker, without a process.

use model::{Compare, TaskReport};
use policy::judging::{Judgement, judge};
use remote::Remote;

use crate::{
    answer::fail, output::TaskOutput, patience::Patience, small_file, task_error::TaskError, tree::Node,
};

/// Maximum bytes of each of the two files.
const COMPARED_MAX: u64 = 16 << 20;

/// Compares the file `found` with the file `expected`, the nodes at the paths of `compare`.
pub(crate) async fn compare(
    compare: &Compare,
    (found, expected): (&Node, &Node),
    farm: (&Remote, &Patience),
) -> Result<Judgement, TaskError> {
    let found = small_file::read(found, compare.found.as_str(), COMPARED_MAX, farm).await?;
    let expected = small_file::read(expected, compare.expected.as_str(), COMPARED_MAX, farm).await?;
    let rule = compare.by;
    let judged = tokio::task::spawn_blocking(move || judge(rule, &found, &expected)).await;
    judged.map_err(|panicked| TaskError::Farm(format!("the comparison was aborted: {panicked}")))
}

/// Adds the score to the report, and the difference to the output; the task fails if the score is too low.
pub(crate) fn conclude(
    compare: &Compare,
    judged: Judgement,
    report: &mut TaskReport,
    output: &mut TaskOutput,
) {
    report.score = Some(judged.score);
    let Some(difference) = judged.difference else { return };
    let text = format!("{} differs from {}: {difference}", compare.found, compare.expected);
    if judged.score < compare.pass {
        fail(report, text);
    } else {
        output.add_line(&text);
    }
}
