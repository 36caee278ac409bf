//! Circles of imports among the modules of a crate.
//!
//! A crate is searched level by level: at each, a module is its file, and each of its children is one with
//! all that is below it. An import from one of them to another is an arrow, and what the arrows lead back to
//! stands in a circle. So files are free of circles, and so are folders. That a parent declares its children
//! is no import.
//!
//! Where a crate has an order from the top down, no arrow leads up in it.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Views, blank, expand_imports, without_test_modules, words};

/// Smaller crates are not looked at: they are read as a whole.
const MODULES_MIN: usize = 4;

/// The names on the way from the root of a crate to a module.
type ModulePath = Vec<String>;

/// What stands at one level: the parent itself (empty), or one of its children.
type Member = String;

/// Who imports from whom, and one of the imports.
type Arrows = BTreeMap<(Member, Member), String>;

/// The modules of a crate, and which takes something from which.
pub(super) struct Imports {
    modules: BTreeSet<ModulePath>,
    imports: BTreeSet<(ModulePath, ModulePath)>,
}

impl Imports {
    /// Of the crate whose first file is at `root`. `read` gives the text of a file, if there is one.
    pub(super) fn of_crate(root: &str, read: &impl Fn(&str) -> Option<String>) -> Imports {
        let mut modules = BTreeMap::new();
        load(root, ModulePath::new(), read, &mut modules);
        let of_module = |(module, code): (&ModulePath, &String)| {
            imports(module, code, &modules).into_iter().map(|to| (module.clone(), to)).collect::<Vec<_>>()
        };
        let imports = modules.iter().flat_map(of_module).collect();
        Imports { modules: modules.into_keys().collect(), imports }
    }

    /// The circles, each as a sentence.
    pub(super) fn circles(&self) -> Vec<String> {
        if self.modules.len() < MODULES_MIN {
            return Vec::new();
        }
        let parents: BTreeSet<&[String]> =
            self.modules.iter().filter_map(|module| module.split_last()).map(|(_, parent)| parent).collect();
        parents.into_iter().flat_map(|parent| circles(parent, &arrows_at(parent, &self.imports))).collect()
    }

    /// What the modules at the top of the crate break of this order, from the top down, each as a sentence.
    pub(super) fn against(&self, order: &[&str]) -> Vec<String> {
        let place = |member: &Member| order.iter().position(|name| name == member);
        let top: BTreeSet<&Member> = self.modules.iter().filter_map(|module| module.first()).collect();
        let unknown = top.iter().filter(|member| place(member).is_none());
        let gone = order.iter().filter(|name| !top.iter().any(|member| member == *name));
        let mut broken: Vec<String> =
            unknown.map(|member| format!("{member} has no place in the order of the crate")).collect();
        broken.extend(gone.map(|name| format!("{name} is in the order of the crate, and no module of it")));
        for ((from, to), import) in arrows_at(&[], &self.imports) {
            if let (Some(lower), Some(upper)) = (place(&from), place(&to))
                && lower > upper
            {
                broken.push(format!("an arrow up: {import}"));
            }
        }
        broken
    }
}

/// Reads a module and all below it: their code without comments, literals and tests.
fn load(
    file: &str,
    module: ModulePath,
    read: &impl Fn(&str) -> Option<String>,
    modules: &mut BTreeMap<ModulePath, String>,
) {
    let Some(text) = read(file) else { return };
    let code = without_test_modules(&Views::of(&text).code);
    let (folder, name) = file.rsplit_once('/').unwrap_or((".", file));
    let own_folder = match name {
        "lib.rs" | "main.rs" | "mod.rs" => folder.to_owned(),
        _ => format!("{folder}/{}", name.trim_end_matches(".rs")),
    };
    for child in declared(&code) {
        let below = [module.clone(), vec![child.clone()]].concat();
        let files = [format!("{own_folder}/{child}.rs"), format!("{own_folder}/{child}/mod.rs")];
        for file in files {
            load(&file, below.clone(), read, modules);
        }
    }
    modules.insert(module, code);
}

/// The modules with files of their own that the code declares.
fn declared(code: &str) -> Vec<String> {
    let declared = words(code, "mod").into_iter().filter_map(|at| {
        let (name, _) = code[at + "mod".len()..].split_once([';', '{'])?;
        let ends_here = code[at..].trim_start_matches(|c| c != ';' && c != '{').starts_with(';');
        ends_here.then(|| name.trim().to_owned())
    });
    declared.collect()
}

/// The modules that code takes something from.
fn imports(module: &[String], code: &str, modules: &BTreeMap<ModulePath, String>) -> BTreeSet<ModulePath> {
    let mut rest = code.to_owned();
    let mut found = BTreeSet::new();
    // Modules whose names are in scope without a path in front of them.
    let mut in_scope = BTreeMap::new();
    // `use<'_>` in a type says what is captured.
    for start in words(code, "use").into_iter().filter(|at| !code[at + "use".len()..].starts_with('<')) {
        let end = code[start..].find(';').map_or(code.len(), |length| start + length);
        for path in expand_imports(&code[start + "use".len()..end]) {
            let Some(to) = resolve(module, &path, modules) else { continue };
            let is_whole =
                path.trim_end_matches("::self").rsplit("::").next() == to.last().map(String::as_str);
            match is_whole {
                true => drop(in_scope.insert(to.last().cloned().unwrap_or_default(), to.clone())),
                false if path.ends_with("::*") => in_scope.extend(children(&to, modules)),
                false => {}
            }
            found.insert(to);
        }
        rest.replace_range(start..end, &blank(&code[start..end]));
    }
    for path in paths_in(&rest) {
        let (first, more) = path.split_once("::").unwrap_or((&path, ""));
        let resolved = match in_scope.get(first) {
            Some(to) => resolve(to, &format!("self::{more}"), modules),
            None => resolve(module, &path, modules),
        };
        found.extend(resolved);
    }
    found.remove(module);
    found
}

/// The names of the children of a module, and where they are.
fn children(of: &[String], modules: &BTreeMap<ModulePath, String>) -> BTreeMap<String, ModulePath> {
    let below = modules.keys().filter(|module| module.len() == of.len() + 1 && module.starts_with(of));
    below.filter_map(|module| Some((module.last()?.clone(), module.clone()))).collect()
}

/// The paths in code that is no import. How far an item is seen (`pub(in path)`) takes nothing from there.
fn paths_in(code: &str) -> Vec<String> {
    let in_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let mut paths = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find("::") {
        let start = rest[..at]
            .rfind(|c| !in_path(c))
            .map_or(0, |before| before + rest[before..].chars().next().map_or(1, char::len_utf8));
        let end = rest[at..].find(|c| !in_path(c)).map_or(rest.len(), |length| at + length);
        if !rest[..start].ends_with("(in ") {
            paths.push(rest[start..end].trim_end_matches(':').to_owned());
        }
        rest = &rest[end..];
    }
    paths
}

/// The module that a path leads into, as seen from `module`; `None` where that is none of this crate.
fn resolve(module: &[String], path: &str, modules: &BTreeMap<ModulePath, String>) -> Option<ModulePath> {
    let mut parts = path.split("::").peekable();
    let mut found = match parts.peek()? {
        &"crate" => {
            parts.next();
            ModulePath::new()
        }
        &"self" => {
            parts.next();
            module.to_vec()
        }
        &"super" => {
            let mut found = module.to_vec();
            while parts.next_if_eq(&"super").is_some() {
                found.pop()?;
            }
            found
        }
        child if modules.contains_key(&[module, &[(*child).to_owned()]].concat()) => module.to_vec(),
        _ => return None,
    };
    for part in parts {
        found.push(part.to_owned());
        if !modules.contains_key(&found) {
            found.pop();
            break;
        }
    }
    Some(found)
}

/// The arrows among a parent and its children.
fn arrows_at(parent: &[String], imports: &BTreeSet<(ModulePath, ModulePath)>) -> Arrows {
    let place = |module: &ModulePath| -> Option<Member> {
        Some(module.strip_prefix(parent)?.first().cloned().unwrap_or_default())
    };
    let mut arrows = Arrows::new();
    for (from, to) in imports {
        if let (Some(a), Some(b)) = (place(from), place(to))
            && a != b
        {
            arrows.entry((a, b)).or_insert_with(|| format!("{} -> {}", shown(from), shown(to)));
        }
    }
    arrows
}

/// All circles among these, each with an import for each of its arrows.
fn circles(parent: &[String], arrows: &Arrows) -> Vec<String> {
    let places: BTreeSet<&Member> = arrows.keys().flat_map(|(from, to)| [from, to]).collect();
    let reached: BTreeMap<&Member, BTreeSet<&Member>> =
        places.iter().map(|place| (*place, reached_from(place, arrows))).collect();
    let mut circles: BTreeMap<Vec<&Member>, Vec<&str>> = BTreeMap::new();
    for ((from, to), import) in arrows {
        if reached[to].contains(from) {
            let members = places
                .iter()
                .filter(|other| reached[*other].contains(from) && reached[from].contains(**other));
            circles.entry(members.copied().collect()).or_default().push(import);
        }
    }
    let sentence =
        |imports: Vec<&str>| format!("circle of imports in {}: {}", shown(parent), imports.join(", "));
    circles.into_values().map(sentence).collect()
}

fn reached_from<'a>(place: &Member, arrows: &'a Arrows) -> BTreeSet<&'a Member> {
    let mut reached = BTreeSet::new();
    let mut open = vec![place];
    while let Some(next) = open.pop() {
        for (_, to) in arrows.keys().filter(|(from, _)| from == next) {
            if reached.insert(to) {
                open.push(to);
            }
        }
    }
    reached
}

fn shown(module: &[String]) -> String {
    if module.is_empty() { "the crate".to_owned() } else { module.join("::") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
        let read =
            |path: &str| files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned());
        Imports::of_crate("src/lib.rs", &read).circles()
    }

    const ROOT: (&str, &str) = ("src/lib.rs", "mod a;\nmod b;\nmod c;\n");

    #[test]
    fn what_is_layered_has_no_circle() {
        let circles = circles_of(&[
            ROOT,
            ("src/a.rs", "use crate::b::{self, B};\nuse crate::c;\nfn a() { crate::c::d::e() }"),
            (
                "src/b.rs",
                "// use crate::a::A;\nconst A: &str = \"crate::a::A\";\n#[cfg(test)]\nmod tests { use \
                    crate::a; }",
            ),
            ("src/c/mod.rs", "mod d;\npub use self::d::e;\n#[cfg(test)]\nuse crate::b;"),
            ("src/c/d.rs", "pub(in crate::c) fn e() { std::fs::read(); }"),
        ]);
        assert_eq!(circles, [""; 0]);
    }

    #[test]
    fn files_that_import_each_other_are_found() {
        let circles = circles_of(&[
            ROOT,
            ("src/a.rs", "use crate::{b::B, c};"),
            ("src/b.rs", "fn b() { super::c::d() }"),
            ("src/c.rs", "use super::a::A;"),
        ]);
        assert_eq!(circles, ["circle of imports in the crate: a -> b, a -> c, b -> c, c -> a"]);
    }

    #[test]
    fn folders_that_import_each_other_are_found() {
        let circles = circles_of(&[
            ROOT,
            ("src/a/mod.rs", "mod x;\nmod y;"),
            ("src/a/x.rs", "use crate::b::B;"),
            ("src/a/y.rs", ""),
            ("src/b.rs", "use crate::a::y::Y;"),
            ("src/c.rs", ""),
        ]);
        assert_eq!(circles, ["circle of imports in the crate: a::x -> b, b -> a::y"]);
    }

    #[test]
    fn a_child_that_uses_its_parent_is_found_where_that_uses_the_child() {
        let with = |parent: &str| {
            circles_of(&[
                ROOT,
                ("src/a.rs", parent),
                ("src/a/d.rs", "use super::A;"),
                ("src/b.rs", ""),
                ("src/c.rs", ""),
            ])
        };
        assert_eq!(with("mod d;\nstruct A;"), [""; 0]);
        let circle = ["circle of imports in a: a -> a::d, a::d -> a"];
        assert_eq!(with("mod d;\nuse self::d::D;\nstruct A;"), circle);
        assert_eq!(with("mod d;\nstruct A;\nfn a() { d::run() }"), circle);
        assert_eq!(with("mod d;\nstruct A;\npub use d::D;"), circle);
    }

    #[test]
    fn each_circle_is_reported_once() {
        let circles = circles_of(&[
            ("src/lib.rs", "mod a; mod b; mod c; mod d; mod e;"),
            ("src/a.rs", "use crate::b;"),
            ("src/b.rs", "use crate::a; use crate::e;"),
            ("src/c.rs", "use crate::d;"),
            ("src/d.rs", "use crate::c;"),
            ("src/e.rs", ""),
        ]);
        assert_eq!(
            circles,
            [
                "circle of imports in the crate: a -> b, b -> a",
                "circle of imports in the crate: c -> d, d -> c"
            ]
        );
    }

    #[test]
    fn what_is_used_by_the_name_of_an_imported_module_is_found() {
        let with = |text: &str| {
            circles_of(&[
                ROOT,
                ("src/a/mod.rs", "mod x;\nmod y;"),
                ("src/a/x.rs", text),
                ("src/a/y.rs", "use super::x::X;"),
                ("src/b.rs", ""),
                ("src/c.rs", ""),
            ])
        };
        let circle = ["circle of imports in a: a::x -> a::y, a::y -> a::x"];
        assert_eq!(with("fn x() -> impl Fn() + use<'_> {}\nuse super::y::Y;"), circle);
        assert!(with("use crate::a;\nfn x() { a::y::run() }").concat().contains("a::x -> a::y"));
        assert!(with("use super::*;\nfn x() { y::run() }").concat().contains("a::x -> a::y"));
        assert!(with("use super::y;\nfn x() { y::run() }").concat().contains("a::x -> a::y"));
    }

    #[test]
    fn an_arrow_up_breaks_an_order() {
        let files = [ROOT, ("src/a.rs", "use crate::b;"), ("src/b.rs", ""), ("src/c.rs", "use super::b::B;")];
        let read =
            |path: &str| files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned());
        let imports = Imports::of_crate("src/lib.rs", &read);
        assert_eq!(imports.against(&["a", "c", "b"]), [""; 0]);
        assert_eq!(imports.against(&["a", "b", "c"]), ["an arrow up: c -> b"]);
        let of_another = [
            "c has no place in the order of the crate",
            "d is in the order of the crate, and no module of it",
        ];
        assert_eq!(imports.against(&["a", "b", "d"]), of_another);
    }

    #[test]
    fn small_crates_are_left_alone() {
        let small =
            [("src/lib.rs", "mod a;\nmod b;"), ("src/a.rs", "use crate::b;"), ("src/b.rs", "use crate::a;")];
        assert_eq!(circles_of(&small), [""; 0]);
    }
}
