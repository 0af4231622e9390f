//! The files that each task of a job sees: those of the build's context, and those made by the tasks that it
//! depends on, directly or indirectly. It sees no other files, so no result depends on the order in which
//! tasks happen to run.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, OnceLock},
};

use globset::GlobMatcher;
use invariant::{Present as _, impossible};
use model::{
    BlobDigest, CommandStep, Graph, Input, JobGlob, JobPath, RESERVED_FOLDER, Step, Task, TaskIndex,
};
use parking_lot::Mutex;
use roaring::RoaringBitmap;

use crate::{
    effect_paths::EffectPaths,
    task_number::number,
    tree::{Content, Folder, Node, TreeError, each_file, join},
    visible::VisibleEffects,
};

/// The effect of a successful task on the files.
#[derive(Debug)]
pub(crate) enum Effect {
    /// The task created or replaced these paths.
    Adds(Vec<(String, Node)>),
    /// The task removed this path.
    Removes(String),
    /// The task moved this entry; `replace`: in place of what was at `to`.
    Moves { from: String, to: String, node: Node, replace: bool },
}

/// The files of a job as each of its tasks sees them.
pub(crate) struct JobFiles {
    graph: Arc<Graph>,
    base: Arc<Folder>,
    /// The effect of each task.
    effects: Vec<OnceLock<Effect>>,
    /// The position of each task in the order in which effects apply.
    rank: Vec<u32>,
    /// The inputs of each task, and the tasks that affect them.
    reads: Vec<Vec<Read>>,
    /// The file that the output of each task is compared with, if it has a command: the command does not see it.
    expected: Vec<Option<Read>>,
    /// The inputs of the interactor of each task, which its command does not see.
    of_interactors: Vec<Vec<Read>>,
    globs: HashMap<String, GlobView>,
}

/// One input of a task.
struct Read {
    what: Wanted,
    /// Tasks whose effects touch it, whether or not this task may see them.
    by: Arc<RoaringBitmap>,
}

enum Wanted {
    Path(JobPath),
    Glob(String),
}

struct GlobView {
    matcher: GlobMatcher,
    /// The path components before the first pattern.
    start: String,
    by: Arc<RoaringBitmap>,
    /// The last result, and the tasks whose effects it includes.
    last: Mutex<Option<(RoaringBitmap, Arc<Folder>)>>,
}

/// Why a task cannot have its inputs.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ViewError {
    /// The input does not exist.
    #[error("{0} does not exist")]
    Missing(String),
    /// Another task makes the input, and this one does not depend on it.
    #[error("{path} does not exist for this task: it is produced by task {by}; add {by} to `dependencies`")]
    Unseen { path: String, by: String },
    /// The path leads through a symlink, which the step does not follow.
    #[error("{path} leads through symlink {link}: use the path without symlinks")]
    BehindLink { path: String, link: String },
    /// The path that an entry is moved to is not free.
    #[error("{0} exists already: to replace it, set `replace: true`")]
    Exists(String),
    /// The input exists but cannot be sent.
    #[error(transparent)]
    Tree(#[from] TreeError),
}

impl JobFiles {
    /// The files of the job `graph` in a workspace that holds `base`.
    pub(crate) fn new(graph: Arc<Graph>, base: Arc<Folder>) -> Self {
        let mut rank = vec![0; graph.len()];
        for (place, index) in (0_u32..).zip(graph.order()) {
            if let Some(rank) = rank.get_mut(index.get()) {
                *rank = place;
            } else {
                impossible!("the job has no task {} to order", index.get());
            }
        }
        let effects = std::iter::repeat_with(OnceLock::new).take(graph.len()).collect();
        let effect_paths = EffectPaths::of(&graph);
        let (mut globs, mut by_path) = (HashMap::new(), HashMap::new());
        let reads =
            graph.tasks().iter().map(|task| reads(task, &effect_paths, &mut globs, &mut by_path)).collect();
        let expected = graph.tasks().iter().map(|task| expected(task, &effect_paths, &mut by_path)).collect();
        let of_interactors = graph
            .tasks()
            .iter()
            .map(|task| inputs(interactor_inputs(task), &effect_paths, &mut globs, &mut by_path))
            .collect();
        Self { graph, base, effects, rank, reads, expected, of_interactors, globs }
    }

    pub(crate) fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    /// Tasks whose effects are visible to tasks that do not directly depend on them.
    pub(crate) fn watched(&self) -> RoaringBitmap {
        let mut watched = RoaringBitmap::new();
        let others = self.expected.iter().zip(&self.of_interactors);
        for (((index, task), reads), (expected, more)) in self.graph.indexed().zip(&self.reads).zip(others) {
            let mut close: RoaringBitmap = task.dependencies.iter().map(|it| number(*it)).collect();
            close.insert(number(index));
            for read in reads.iter().chain(expected).chain(more) {
                if !read.by.is_subset(&close) {
                    watched |= &*read.by - &close;
                }
            }
        }
        watched
    }

    /// Existing files that a task reads: these are worth hashing in advance.
    pub(crate) fn wanted_files(&self) -> Vec<Arc<Content>> {
        let mut wanted = Arc::default();
        let mut views: Vec<&GlobView> = self.globs.values().collect();
        views.sort_by(|a, b| a.start.cmp(&b.start));
        for view in views {
            // An input that is too large is reported to the task that reads it.
            if let Ok(files) = view.of(&self.base, &RoaringBitmap::new()) {
                Folder::merge(&mut wanted, &files);
            }
        }
        for read in self.reads.iter().chain(&self.of_interactors).flatten() {
            let Wanted::Path(path) = &read.what else { continue };
            for (path, node) in self.base.resolve(path.as_str()).into_iter().flatten() {
                Folder::insert_at(&mut wanted, &path, node);
            }
        }
        let mut files = Vec::new();
        contents(&wanted, &mut files);
        files
    }

    /// Records the effect of a task. Only the first record of a task counts.
    pub(crate) fn record_effect(&self, task: TaskIndex, effect: Effect) {
        let Some(recorded) = self.effects.get(task.get()) else {
            impossible!("the job has no task {} to record an effect of", task.get());
            return;
        };
        // A task that runs again keeps its first effect.
        let _ = recorded.set(effect);
    }

    /// The effects that a task may see, for a task that was started before.
    pub(crate) fn visible_to(&self, task: TaskIndex) -> VisibleEffects {
        VisibleEffects::recompute(&self.graph, task, &self.watched())
    }

    /// The tasks whose commands made one of `files` that exist only in the farm's store.
    pub(crate) fn producers(&self, files: &HashSet<BlobDigest>) -> Vec<TaskIndex> {
        let made = |index: TaskIndex| {
            let Some(Effect::Adds(added)) = self.effects.get(index.get()).and_then(OnceLock::get) else {
                return false;
            };
            let (mut found, mut seen) = (false, HashSet::new());
            for (_, node) in added {
                each_file(node, &mut seen, &mut |content| {
                    found |= content.path().is_none() && content.digest().is_ok_and(|it| files.contains(&it));
                });
            }
            found
        };
        let commands = self.graph.indexed().filter(|(_, task)| matches!(task.step, Step::Command(_)));
        commands.map(|(index, _)| index).filter(|index| made(*index)).collect()
    }

    /// The input root of a command; with that of its interactor, if it has inputs, in the reserved folder.
    pub(crate) fn input_root(
        &self,
        index: TaskIndex,
        command: &CommandStep,
        effects: &VisibleEffects,
    ) -> Result<Arc<Folder>, ViewError> {
        let mut root = self.all_of(self.reads_of(index), effects)?;
        // The working directory must exist, possibly behind a symlink.
        let start = command.folder.as_str();
        if !start.is_empty() && root.resolve(start).is_none() {
            Folder::insert_at(&mut root, start, Node::Folder(Arc::default()));
        }
        let of_interactor = self.of_interactors.get(index.get()).map(Vec::as_slice).unwrap_or_default();
        if !of_interactor.is_empty() {
            let folder = self.all_of(of_interactor, effects)?;
            Folder::put(&mut root, RESERVED_FOLDER, Node::Folder(folder));
        }
        root.check("")?;
        Ok(root)
    }

    /// The files that a command reads.
    fn all_of(&self, reads: &[Read], effects: &VisibleEffects) -> Result<Arc<Folder>, ViewError> {
        let mut root = Arc::default();
        let view = self.view_for(reads, effects);
        for read in reads {
            match &read.what {
                Wanted::Glob(text) => {
                    let Some(glob) = self.globs.get(text) else {
                        impossible!("input glob {text:?} of a task is not compiled");
                        continue;
                    };
                    let visible = effects.of(&read.by);
                    let files = glob.with(&visible, || self.view(&visible))?;
                    Folder::merge(&mut root, &files);
                }
                Wanted::Path(path) => {
                    for (path, node) in self.find(&view, path, read, effects)? {
                        Folder::insert_at(&mut root, &path, node);
                    }
                }
            }
        }
        Ok(root)
    }

    /// What a task reads.
    fn reads_of(&self, index: TaskIndex) -> &[Read] {
        self.reads.get(index.get()).map(Vec::as_slice).present("the inputs of a task")
    }

    /// The input of an internal step.
    pub(crate) fn source(
        &self,
        index: TaskIndex,
        path: &JobPath,
        effects: &VisibleEffects,
    ) -> Result<Node, ViewError> {
        self.target(self.reads_of(index), path, effects)
    }

    /// Fails if there is something at the path that an internal step moves to.
    pub(crate) fn check_free(
        &self,
        index: TaskIndex,
        path: &JobPath,
        effects: &VisibleEffects,
    ) -> Result<(), ViewError> {
        let view = self.view_for(self.reads_of(index), effects);
        if view.at(path.as_str()).is_some() { Err(ViewError::Exists(path.to_string())) } else { Ok(()) }
    }

    /// What an internal step moves: the file, folder or symlink that has exactly this path.
    pub(crate) fn entry(
        &self,
        index: TaskIndex,
        path: &JobPath,
        effects: &VisibleEffects,
    ) -> Result<Node, ViewError> {
        let reads = self.reads_of(index);
        if let Some(node) = self.view_for(reads, effects).at(path.as_str()) {
            return Ok(node.clone());
        }
        let first = self.found(reads, path, effects)?.into_iter().next();
        Err(match first {
            Some((link, _)) => ViewError::BehindLink { path: path.to_string(), link },
            None => ViewError::Missing(path.to_string()),
        })
    }

    /// The file that the output of a command is compared with.
    pub(crate) fn expected(
        &self,
        index: TaskIndex,
        path: &JobPath,
        effects: &VisibleEffects,
    ) -> Result<Node, ViewError> {
        let expected = self.expected.get(index.get()).map(Option::as_slice).unwrap_or_default();
        self.target(expected, path, effects)
    }

    /// The node at `path`, one of `reads`: the target of symlinks, not the symlinks themselves.
    fn target(&self, reads: &[Read], path: &JobPath, effects: &VisibleEffects) -> Result<Node, ViewError> {
        let last = self.found(reads, path, effects)?.into_iter().next_back();
        last.map(|(_, node)| node).ok_or_else(|| ViewError::Missing(path.to_string()))
    }

    /// The nodes on the way to `path`, one of `reads`.
    fn found(
        &self,
        reads: &[Read],
        path: &JobPath,
        effects: &VisibleEffects,
    ) -> Result<Vec<(String, Node)>, ViewError> {
        let is_it = |read: &&Read| matches!(&read.what, Wanted::Path(wanted) if wanted == path);
        let read = reads.iter().find(is_it).ok_or_else(|| ViewError::Missing(path.to_string()))?;
        self.find(&self.view_for(reads, effects), path, read, effects)
    }

    /// All files at the end: those of the workspace with the effects of all tasks.
    pub(crate) fn outcome(&self) -> Arc<Folder> {
        let all: RoaringBitmap = self.graph.indexed().map(|(index, _)| number(index)).collect();
        self.view(&all)
    }

    /// The files with all effects that a task may see on the paths that it reads.
    fn view_for(&self, reads: &[Read], effects: &VisibleEffects) -> Arc<Folder> {
        let paths = reads.iter().filter(|read| matches!(read.what, Wanted::Path(_)));
        let mut visible = RoaringBitmap::new();
        let mut last: Option<&Arc<RoaringBitmap>> = None;
        for read in paths {
            if last.is_none_or(|last| !Arc::ptr_eq(last, &read.by)) {
                visible |= effects.of(&read.by);
            }
            last = Some(&read.by);
        }
        self.view(&visible)
    }

    fn find(
        &self,
        view: &Arc<Folder>,
        path: &JobPath,
        read: &Read,
        effects: &VisibleEffects,
    ) -> Result<Vec<(String, Node)>, ViewError> {
        view.resolve(path.as_str()).ok_or_else(|| {
            let unseen = &*read.by - &effects.of(&read.by);
            let mut others = unseen.iter().filter_map(|at| self.graph.tasks().get(at as usize));
            match others.find(|other| !only_removes(&other.step, path)) {
                Some(other) => ViewError::Unseen { path: path.to_string(), by: other.id.to_string() },
                None => ViewError::Missing(path.to_string()),
            }
        })
    }

    /// The files with the effects of these tasks.
    fn view(&self, tasks: &RoaringBitmap) -> Arc<Folder> {
        let mut ordered: Vec<(u32, &Effect)> = tasks
            .iter()
            .filter_map(|at| {
                let at = at as usize;
                Some((*self.rank.get(at)?, self.effects.get(at)?.get()?))
            })
            .collect();
        ordered.sort_unstable_by_key(|(rank, _)| *rank);
        let mut view = Arc::clone(&self.base);
        for (_, effect) in ordered {
            match effect {
                Effect::Adds(added) => {
                    for (path, node) in added {
                        Folder::insert_at(&mut view, path, node.clone());
                    }
                }
                Effect::Removes(path) => Folder::remove_at(&mut view, path),
                Effect::Moves { from, to, node, replace } => {
                    Folder::remove_at(&mut view, from);
                    if *replace {
                        Folder::remove_at(&mut view, to);
                    }
                    Folder::insert_at(&mut view, to, node.clone());
                }
            }
        }
        // An archive that is unpacked into the workspace may have it.
        Folder::remove_at(&mut view, RESERVED_FOLDER);
        view
    }
}

impl GlobView {
    fn new(glob: &JobGlob, effect_paths: &EffectPaths) -> Self {
        let is_plain = |name: &&str| !name.contains(['*', '?', '[', ']', '{', '}', '\\']);
        let mut names: Vec<&str> = glob.as_str().split('/').take_while(is_plain).collect();
        // Without a pattern the last component is a file name.
        if names.len() == glob.as_str().split('/').count() {
            names.pop();
        }
        let start = names.join("/");
        let by = Arc::new(effect_paths.affecting(&start));
        Self { matcher: glob.matcher(), start, by, last: Mutex::default() }
    }

    /// The matching files with the effects of `visible`; `view` builds the tree if they are not cached.
    fn with(
        &self,
        visible: &RoaringBitmap,
        view: impl FnOnce() -> Arc<Folder>,
    ) -> Result<Arc<Folder>, TreeError> {
        let last = self.last.lock();
        if let Some((with, files)) = &*last
            && with == visible
        {
            return Ok(Arc::clone(files));
        }
        drop(last);
        self.of(&view(), visible)
    }

    /// The matching files in `view`, which includes the effects of `visible`.
    fn of(&self, view: &Arc<Folder>, visible: &RoaringBitmap) -> Result<Arc<Folder>, TreeError> {
        let mut files = Arc::default();
        let start = if self.start.is_empty() { Some(&**view) } else { folder_at(view, &self.start) };
        if let Some(start) = start {
            start.check(&self.start)?;
        }
        if let Some(start) = start
            && let Some(found) = matching(start, &self.start, &self.matcher)
        {
            Folder::insert_at(&mut files, &self.start, Node::Folder(found));
        }
        let mut last = self.last.lock();
        *last = Some((visible.clone(), Arc::clone(&files)));
        Ok(files)
    }
}

/// Whether a step that affects `path` does no more than remove it.
fn only_removes(step: &Step, path: &JobPath) -> bool {
    let is_in = |inner: &JobPath, outer: &JobPath| inner.with_folders().any(|it| it == outer.as_str());
    if let Step::Rename { to, .. } = step {
        return !is_in(path, to) && !is_in(to, path);
    }
    matches!(step, Step::Remove(_))
}

fn folder_at<'a>(root: &'a Folder, path: &str) -> Option<&'a Folder> {
    match root.at(path)? {
        Node::Folder(folder) => Some(folder),
        Node::File { .. } | Node::Link(_) => None,
    }
}

/// The matching files of `folder`, which is at `place`; `None` if none match. A folder that matches as
/// a whole is shared.
fn matching(folder: &Folder, place: &str, matcher: &GlobMatcher) -> Option<Arc<Folder>> {
    let mut found = Arc::default();
    for (name, node) in folder.entries() {
        let place = join(place, name);
        match node {
            Node::File { .. } | Node::Link(_) if matcher.is_match(&place) => {
                Folder::put(&mut found, name, node.clone());
            }
            Node::File { .. } | Node::Link(_) => {}
            Node::Folder(below) => {
                if let Some(below) = matching(below, &place, matcher) {
                    Folder::put(&mut found, name, Node::Folder(below));
                }
            }
        }
    }
    (!found.is_empty()).then_some(found)
}

fn contents(folder: &Folder, files: &mut Vec<Arc<Content>>) {
    for node in folder.entries().values() {
        match node {
            Node::File { content, .. } => files.push(Arc::clone(content)),
            Node::Folder(below) => contents(below, files),
            Node::Link(_) => {}
        }
    }
}

/// What the output of a command is compared with.
fn expected(
    task: &Task,
    effect_paths: &EffectPaths,
    by_path: &mut HashMap<JobPath, Arc<RoaringBitmap>>,
) -> Option<Read> {
    let Step::Command(command) = &task.step else { return None };
    Some(read_path(&command.compare.as_ref()?.expected, effect_paths, by_path))
}

/// The read of a path. Each path is looked up once, even if many tasks read it.
fn read_path(
    path: &JobPath,
    effect_paths: &EffectPaths,
    by_path: &mut HashMap<JobPath, Arc<RoaringBitmap>>,
) -> Read {
    let by = by_path.entry(path.clone()).or_insert_with(|| Arc::new(effect_paths.affecting(path.as_str())));
    Read { what: Wanted::Path(path.clone()), by: Arc::clone(by) }
}

/// The inputs of the interactor of a task.
fn interactor_inputs(task: &Task) -> &[Input] {
    let interactor = task.step.as_command().and_then(|command| command.interactor.as_ref());
    interactor.map_or(&[], |interactor| &interactor.inputs)
}

fn inputs(
    all: &[Input],
    effect_paths: &EffectPaths,
    globs: &mut HashMap<String, GlobView>,
    by_path: &mut HashMap<JobPath, Arc<RoaringBitmap>>,
) -> Vec<Read> {
    let read = |input: &Input| match input {
        Input::Path(wanted) => read_path(wanted, effect_paths, by_path),
        Input::Glob(glob) => {
            let text = glob.as_str().to_owned();
            let view = globs.entry(text.clone()).or_insert_with(|| GlobView::new(glob, effect_paths));
            Read { what: Wanted::Glob(text), by: Arc::clone(&view.by) }
        }
    };
    all.iter().map(read).collect()
}

/// The inputs of a task.
fn reads(
    task: &Task,
    effect_paths: &EffectPaths,
    globs: &mut HashMap<String, GlobView>,
    by_path: &mut HashMap<JobPath, Arc<RoaringBitmap>>,
) -> Vec<Read> {
    let mut path = |path: &JobPath| read_path(path, effect_paths, by_path);
    match &task.step {
        Step::Command(command) => inputs(&command.inputs, effect_paths, globs, by_path),
        Step::Extract { from, .. }
        | Step::Archive { from, .. }
        | Step::Copy { from, .. }
        | Step::Truncate { from, .. }
        | Step::Exists { path: from, .. } => vec![path(from)],
        Step::Rename { from, to, .. } => vec![path(from), path(to)],
        Step::Compare(compare) => vec![path(&compare.found), path(&compare.expected)],
        Step::Fetch { .. } | Step::MakeFolder(_) | Step::Remove(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
