//! What each task of a job sees: what the build's context put there, and what the tasks made on which it depends, by
//! whatever many steps. Nothing else, so that no result depends on what happened to run first.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use globset::GlobMatcher;
use model::{CommandStep, Graph, Input, JobGlob, JobPath, Step, Task, TaskIndex};
use roaring::RoaringBitmap;

use super::{
    seen::Seen,
    tree::{Content, Folder, Node, TreeError, join},
};

/// What a task that succeeded did to the files.
#[derive(Debug)]
pub(crate) enum Effect {
    /// It put something at each of these paths.
    Lays(Vec<(String, Node)>),
    /// It took away what was at this path.
    Takes(String),
}

/// The files of a job as each of its tasks sees them.
pub(crate) struct World {
    graph: Arc<Graph>,
    base: Arc<Folder>,
    /// By task.
    effects: Vec<OnceLock<Effect>>,
    /// By task: its place in the order in which effects count.
    rank: Vec<u32>,
    /// By task: what it reads, and the tasks that put something there.
    reads: Vec<Vec<Read>>,
    globs: HashMap<String, GlobView>,
}

/// Something that a task reads.
struct Read {
    what: Wanted,
    /// Tasks whose effects have to do with it, whether or not this task may see them.
    by: Arc<RoaringBitmap>,
}

enum Wanted {
    Path(JobPath),
    Glob(String),
}

struct GlobView {
    matcher: GlobMatcher,
    /// The names before the first that is a pattern.
    start: String,
    by: Arc<RoaringBitmap>,
    /// What it matched last, and with which effects.
    last: Mutex<Option<(RoaringBitmap, Arc<Folder>)>>,
}

/// Why a task cannot have what it reads.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ViewError {
    /// It is not there.
    #[error("{0} is not there")]
    Missing(String),
    /// It is not there for this task.
    #[error(
        "{path} is not there: task {by} puts something there, and this task does not depend on it (name it in dependencies)"
    )]
    Unseen {
        /// What.
        path: String,
        /// By whom.
        by: String,
    },
    /// It is there and cannot be sent.
    #[error(transparent)]
    Tree(#[from] TreeError),
}

impl World {
    /// The files of the job `graph` in a workspace that holds `base`.
    pub(crate) fn new(graph: Arc<Graph>, base: Arc<Folder>) -> Self {
        let mut rank = vec![0; graph.len()];
        for (place, index) in (0_u32..).zip(graph.order()) {
            if let Some(rank) = rank.get_mut(index.get()) {
                *rank = place;
            }
        }
        let effects = std::iter::repeat_with(OnceLock::new).take(graph.len()).collect();
        let roots = Roots::of(&graph);
        let mut globs = HashMap::new();
        let reads = graph.tasks().iter().map(|task| reads(task, &roots, &mut globs)).collect();
        Self { graph, base, effects, rank, reads, globs }
    }

    /// The job.
    pub(crate) fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    /// Which tasks' effects others see that do not name them as dependencies themselves.
    pub(crate) fn watched(&self) -> RoaringBitmap {
        let mut watched = RoaringBitmap::new();
        for ((index, task), reads) in self.graph.indexed().zip(&self.reads) {
            let mut close: RoaringBitmap = task.dependencies.iter().map(|it| number(*it)).collect();
            close.insert(number(index));
            for read in reads {
                if !read.by.is_subset(&close) {
                    watched |= &*read.by - &close;
                }
            }
        }
        watched
    }

    /// Files that were there before the first task and that a task reads: worth hashing in advance.
    pub(crate) fn wanted_files(&self) -> Vec<Arc<Content>> {
        let mut wanted = Arc::default();
        let mut views: Vec<&GlobView> = self.globs.values().collect();
        views.sort_by(|a, b| a.start.cmp(&b.start));
        for view in views {
            Folder::lay_all(&mut wanted, &view.of(&self.base, &RoaringBitmap::new()));
        }
        for read in self.reads.iter().flatten() {
            let Wanted::Path(path) = &read.what else { continue };
            for (path, node) in self.base.resolve(path.as_str()).into_iter().flatten() {
                Folder::lay(&mut wanted, &path, node);
            }
        }
        let mut files = Vec::new();
        contents(&wanted, &mut files);
        files
    }

    /// Notes what a task did. Only the first note of a task counts.
    pub(crate) fn done(&self, task: TaskIndex, effect: Effect) {
        if let Some(slot) = self.effects.get(task.get()) {
            let _ = slot.set(effect);
        }
    }

    /// The input root of a command.
    pub(crate) fn input_root(
        &self,
        index: TaskIndex,
        command: &CommandStep,
        seen: &Seen,
    ) -> Result<Arc<Folder>, ViewError> {
        let mut root = Arc::default();
        for read in self.reads.get(index.get()).into_iter().flatten() {
            match &read.what {
                Wanted::Glob(text) => {
                    let Some(view) = self.globs.get(text) else { continue };
                    let visible = seen.of(&read.by);
                    let files = view.with(&visible, || self.view(&visible));
                    Folder::lay_all(&mut root, &files);
                }
                Wanted::Path(path) => {
                    for (path, node) in self.find(path, read, seen)? {
                        Folder::lay(&mut root, &path, node);
                    }
                }
            }
        }
        // Where it starts has to be there.
        let start = command.folder.as_str();
        if !start.is_empty() && folder_at(&root, start).is_none() {
            Folder::lay(&mut root, start, Node::Folder(Arc::default()));
        }
        Ok(root)
    }

    /// What an internal step reads.
    pub(crate) fn source(&self, index: TaskIndex, path: &JobPath, seen: &Seen) -> Result<Node, ViewError> {
        let read = self.reads.get(index.get()).and_then(|reads| reads.first());
        let missing = || ViewError::Missing(path.to_string());
        let found = self.find(path, read.ok_or_else(missing)?, seen)?;
        // Where symlinks lead, not these themselves.
        found.into_iter().next_back().map(|(_, node)| node).ok_or_else(missing)
    }

    /// All files at the end: what is left of what there was, and what the tasks made.
    pub(crate) fn outcome(&self) -> Arc<Folder> {
        let all: RoaringBitmap = self.graph.indexed().map(|(index, _)| number(index)).collect();
        self.view(&all)
    }

    fn find(&self, path: &JobPath, read: &Read, seen: &Seen) -> Result<Vec<(String, Node)>, ViewError> {
        let visible = seen.of(&read.by);
        let found = if visible.is_empty() {
            self.base.resolve(path.as_str())
        } else {
            self.view(&visible).resolve(path.as_str())
        };
        found.ok_or_else(|| {
            let other = (&*read.by - &visible).iter().find_map(|at| self.graph.tasks().get(at as usize));
            match other {
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
                Effect::Lays(laid) => {
                    for (path, node) in laid {
                        Folder::lay(&mut view, path, node.clone());
                    }
                }
                Effect::Takes(path) => Folder::take(&mut view, path),
            }
        }
        view
    }
}

impl GlobView {
    fn new(glob: &JobGlob, roots: &Roots) -> Self {
        let is_plain = |name: &&str| !name.contains(['*', '?', '[', ']', '{', '}', '\\']);
        let mut names: Vec<&str> = glob.as_str().split('/').take_while(is_plain).collect();
        // The last name is a file's, if there is no pattern at all.
        if names.len() == glob.as_str().split('/').count() {
            names.pop();
        }
        let start = names.join("/");
        let by = Arc::new(roots.about(&start));
        Self { matcher: glob.matcher(), start, by, last: Mutex::default() }
    }

    /// What it matches with the effects of `visible`; `view` makes that.
    fn with(&self, visible: &RoaringBitmap, view: impl FnOnce() -> Arc<Folder>) -> Arc<Folder> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((with, files)) = &*last
            && with == visible
        {
            return Arc::clone(files);
        }
        drop(last);
        self.of(&view(), visible)
    }

    /// What it matches in `view`, which is what there is with the effects of `visible`.
    fn of(&self, view: &Arc<Folder>, visible: &RoaringBitmap) -> Arc<Folder> {
        let mut files = Arc::default();
        let start = if self.start.is_empty() { Some(&**view) } else { folder_at(view, &self.start) };
        if let Some(start) = start
            && let Some(found) = matching(start, &self.start, &self.matcher)
        {
            Folder::lay(&mut files, &self.start, Node::Folder(found));
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some((visible.clone(), Arc::clone(&files)));
        files
    }
}

fn folder_at<'a>(root: &'a Folder, path: &str) -> Option<&'a Folder> {
    match root.at(path)? {
        Node::Folder(folder) => Some(folder),
        Node::File { .. } | Node::Link(_) => None,
    }
}

/// The files of `folder`, which is at `place`, that match; absent: none. A folder that is matched whole stays what it is.
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

/// What a task reads.
fn reads(task: &Task, roots: &Roots, globs: &mut HashMap<String, GlobView>) -> Vec<Read> {
    let path =
        |path: &JobPath| Read { what: Wanted::Path(path.clone()), by: Arc::new(roots.about(path.as_str())) };
    match &task.step {
        Step::Command(command) => command
            .inputs
            .iter()
            .map(|input| match input {
                Input::Path(wanted) => path(wanted),
                Input::Glob(glob) => {
                    let text = glob.as_str().to_owned();
                    let view = globs.entry(text.clone()).or_insert_with(|| GlobView::new(glob, roots));
                    Read { what: Wanted::Glob(text), by: Arc::clone(&view.by) }
                }
            })
            .collect(),
        Step::Extract { from, .. } | Step::Copy { from, .. } => vec![path(from)],
        Step::Fetch { .. } | Step::MakeFolder(_) | Step::Remove(_) => Vec::new(),
    }
}

/// Where tasks put or take something: the paths that their effects begin at.
struct Roots {
    tasks: BTreeMap<String, Vec<u32>>,
}

impl Roots {
    fn of(graph: &Graph) -> Self {
        let mut tasks: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for (index, task) in graph.indexed() {
            let mut add =
                |path: &JobPath| tasks.entry(path.as_str().to_owned()).or_default().push(number(index));
            match &task.step {
                Step::Command(command) => command.outputs.iter().for_each(add),
                Step::Fetch { to, .. } | Step::Extract { to, .. } | Step::Copy { to, .. } => add(to),
                Step::MakeFolder(path) | Step::Remove(path) => add(path),
            }
        }
        Self { tasks }
    }

    /// Tasks whose effects begin at `path`, above or below it.
    fn about(&self, path: &str) -> RoaringBitmap {
        let mut all = RoaringBitmap::new();
        let above = path.match_indices('/').filter_map(|(at, _)| path.get(..at));
        for place in std::iter::once("").chain(above).chain((!path.is_empty()).then_some(path)) {
            all.extend(self.tasks.get(place).into_iter().flatten());
        }
        // '0' is what comes after '/'.
        let below = if path.is_empty() {
            self.tasks.range::<str, _>((Bound::Unbounded, Bound::Unbounded))
        } else {
            let (from, to) = (format!("{path}/"), format!("{path}0"));
            self.tasks.range::<str, _>((Bound::Included(&*from), Bound::Excluded(&*to)))
        };
        for (_, tasks) in below {
            all.extend(tasks);
        }
        all
    }
}

/// A task's place as the sets have it: there are at most as many tasks.
pub(crate) fn number(index: TaskIndex) -> u32 {
    u32::try_from(index.get()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
