//! Checks 99–102: Execute and the action cache.

use tonic::Code;

use super::e_action_cache::good_result;
use crate::{
    check::{Check, check},
    context::Cx,
    job::{Inputs, Job},
    names::fresh_text,
    stop::{Judged, need, pass, refused, skip},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(99, F, Must, Execution, "do_not_cache neither stores, serves nor merges", do_not_cache),
    check!(
        100,
        F,
        Must,
        Execution,
        "skip_cache_lookup runs the action again and stores the result",
        skip_cache_lookup
    ),
    check!(101, F, May, Execution, "a hit is the first and only message", hit),
    check!(102, F, May, Execution, "equal requests at once are merged", merging),
];

async fn do_not_cache(cx: &Cx) -> Judged {
    let job = Job::random().do_not_cache();
    let first = cx.ok(&job).await?;
    let answer = cx.client.action_result(&first.action).await;
    refused(answer, &[Code::NotFound], "GetActionResult of a do_not_cache action")?;
    let second = cx.ok(&job).await?;
    need!(!second.response.cached_result, "a do_not_cache action was answered from the cache");
    let (one, other) = (cx.stdout(first.result()?).await?, cx.stdout(second.result()?).await?);
    need!(one != other, "a do_not_cache action did not run again");
    let mut job = Job::sh("cat /proc/sys/kernel/random/uuid; sleep 0.5").do_not_cache();
    job.inputs = Inputs::default().file("in", fresh_text());
    let (one, other) = futures::try_join!(cx.ok(&job), cx.ok(&job))?;
    let (one, other) = (cx.stdout(one.result()?).await?, cx.stdout(other.result()?).await?);
    need!(one != other, "two do_not_cache actions at once were merged");
    let update = cx.cache().and_then(|cache| cache.action_cache_update_capabilities);
    if update.is_some_and(|update| update.update_enabled) {
        let job = Job::random().do_not_cache();
        let prepared = cx.prepare(&job);
        cx.client.put_all(&prepared.all()).await?;
        let planted = good_result(cx).await?;
        let is_stored = cx.client.update_action_result(&prepared.action, planted).await.is_ok();
        let run = cx.execute(&prepared, &job).await?.finish().await?;
        need!(
            !is_stored || (!run.response.cached_result && run.result()?.output_files.is_empty()),
            "a do_not_cache action was served a result from the cache"
        );
    }
    pass()
}

async fn skip_cache_lookup(cx: &Cx) -> Judged {
    let job = Job::random();
    let first = cx.ok(&job).await?;
    let hit = cx.ok(&job).await?;
    need!(hit.response.cached_result, "the second run of an action was not a cache hit");
    let again = cx.ok(&job.clone().skip_cache_lookup()).await?;
    need!(!again.response.cached_result, "with skip_cache_lookup, the cache was read");
    let (old, new) = (cx.stdout(first.result()?).await?, cx.stdout(again.result()?).await?);
    need!(old != new, "with skip_cache_lookup, the action did not run again");
    let stored = cx.client.action_result(&again.action).await?;
    need!(cx.stdout(&stored).await? == new, "the result of the later run did not replace the earlier one");
    pass()
}

async fn hit(cx: &Cx) -> Judged {
    let job = Job::random();
    let first = cx.ok(&job).await?;
    need!(!first.response.cached_result, "the first run of an action was a cache hit");
    let second = cx.ok(&job).await?;
    need!(second.response.cached_result, "the second run of an action was not a cache hit");
    need!(second.updates.len() == 1, "a cache hit has {} messages", second.updates.len());
    let (one, other) = (cx.stdout(first.result()?).await?, cx.stdout(second.result()?).await?);
    need!(one == other, "a cache hit has another output");
    pass()
}

async fn merging(cx: &Cx) -> Judged {
    let job = Job::sh("cat /proc/sys/kernel/random/uuid; sleep 1");
    let prepared = cx.prepare(&job);
    cx.client.put_all(&prepared.all()).await?;
    let run = async || cx.execute(&prepared, &job).await?.finish().await;
    let (one, other) = futures::try_join!(run(), run())?;
    let (one, other) = (cx.stdout(one.exited(0)?).await?, cx.stdout(other.exited(0)?).await?);
    if one != other {
        skip!("both ran separately: the server does not merge, which is allowed");
    }
    pass()
}
