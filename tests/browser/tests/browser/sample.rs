//! A farm with builds of several kinds.

use farm::{Farm, SOON};
use model::{BuildKey, BuildRequest, Job, JobSource, Outcome};

/// A farm, and a build of each kind that has ended.
pub(crate) struct Sample {
    pub(crate) farm: Farm,
    pub(crate) failed: BuildKey,
    /// The same as `failed` with another command and label; it succeeded.
    pub(crate) fixed: BuildKey,
    pub(crate) job: BuildKey,
    pub(crate) with_outputs: BuildKey,
}

/// A build that runs a shell script.
pub(crate) fn script(text: &str) -> BuildRequest {
    let command = ["sh", "-c", text].map(str::to_owned).to_vec();
    BuildRequest { command, submitter: Some("ada".to_owned()), ..BuildRequest::default() }
}

/// A build with a label.
pub(crate) fn labelled(text: &str, value: &str) -> BuildRequest {
    BuildRequest { labels: [("branch".to_owned(), value.to_owned())].into(), ..script(text) }
}

const JOB: &str = r#"{"tasks": [
    {"id": "make", "command": ["sh", "-c", "echo x > x"], "outputs": ["x"]},
    {"id": "use", "command": ["sh", "-c", "cat x > y"], "inputs": ["x"], "outputs": ["y"]},
    {"id": "fail", "command": ["sh", "-c", "echo 'no such luck' >&2; exit 3"], "inputs": ["x"]},
    {"id": "after", "command": ["true"], "dependencies": ["fail"]}
]}"#;

impl Sample {
    pub(crate) async fn start() -> Self {
        let farm = Farm::builder().with_actions().with("archive").start().await;
        let failing = "echo compiling; echo 'cannot find main' >&2; exit 2";
        let failed = farm.submit("core", labelled(failing, "login")).await;
        let fixed = farm.submit("core", labelled("echo compiling; echo done", "main")).await;
        let mut request =
            script("mkdir -p out/sub; echo kept > out/sub/a.txt; echo '<b>bold</b>' > out/page.html");
        request.outputs = vec!["out/**".to_owned()];
        let with_outputs = farm.submit("web", request).await;
        let job: Job = serde_json::from_str(JOB).unwrap();
        let job = BuildRequest { job: Some(JobSource::Inline(job)), ..BuildRequest::default() };
        let job = farm.submit("core", job).await;
        for key in [&failed, &fixed, &with_outputs, &job] {
            farm.wait_finished(key, SOON).await;
        }
        let sample = Self { farm, failed, fixed, job, with_outputs };
        sample.is_archived().await;
        sample
    }

    /// Waits until the archive knows the builds and the actions: pages show what it knows.
    async fn is_archived(&self) {
        let request = model::ActionsRequest { build: Some(self.job.id), ..model::ActionsRequest::default() };
        let end = tokio::time::Instant::now() + SOON;
        loop {
            let found = self.farm.client().actions(&request).await;
            let ended = |reply: &model::ActionsReply| {
                reply.actions.iter().filter(|it| it.finished_at_ms.is_some()).count()
            };
            if found.is_ok_and(|reply| ended(&reply) == 3) {
                return;
            }
            assert!(
                tokio::time::Instant::now() < end,
                "the archive does not know the actions of {}",
                self.job
            );
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    /// The pages of a tour: each kind once.
    pub(crate) async fn tour(&self) -> Vec<(&'static str, String)> {
        let outcome = self.farm.wait_finished(&self.job, SOON).await;
        assert_eq!(outcome.result().map(|result| result.outcome), Some(Outcome::Failed));
        let request = model::ActionsRequest { build: Some(self.job.id), ..model::ActionsRequest::default() };
        let actions = self.farm.client().actions(&request).await.unwrap().actions;
        let (first, last) = (&actions.first().unwrap().action, &actions.get(1).unwrap().action);
        vec![
            ("builds", "/builds".to_owned()),
            ("failed build", format!("/builds/{}", self.failed)),
            ("job", format!("/builds/{}", self.job)),
            ("outputs", format!("/builds/{}", self.with_outputs)),
            ("found lines", format!("/builds/{}?q=cannot", self.failed)),
            ("output file", format!("/builds/{}/file/out/page.html", self.with_outputs)),
            ("action", format!("/actions/{first}?group=core")),
            ("compared builds", format!("/compare?a={}&b={}", self.failed, self.fixed)),
            ("compared actions", format!("/compare-actions?a={first}&b={last}")),
            ("choice of builds", format!("/compare?a={}", self.failed)),
            ("my builds", "/mine".to_owned()),
            ("tests", "/tests".to_owned()),
            ("farm", "/farm".to_owned()),
            ("quota", "/quota".to_owned()),
            ("simulation", "/simulate?days=1d&workspaces=2".to_owned()),
            ("help", "/help".to_owned()),
            ("missing", "/builds/core/01a2135a-00b6-76ff-8724-aa3376ecc374".to_owned()),
        ]
    }
}

/// Whether all browser tests run, not only the short form.
pub(crate) fn runs_all() -> bool {
    std::env::var("FOREBAY_E2E").is_ok_and(|value| value == "all")
}
