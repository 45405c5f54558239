//! How the files of a build are encoded: most by one recipe, those that a hint names by others or not at all.

use std::sync::Arc;

use ferrofs_codec::Method;

use super::Compressor;
use super::rules::Rules;
use crate::segment::Choice;
use crate::{Algorithms, Error, ErrorKind, Options, Result};

/// All recipes of a build, and what they have in common. Clones are the same one.
#[derive(Clone, Debug)]
pub(crate) struct Recipes {
    /// The pcluster is that of the first recipe.
    pub(crate) rules: Rules,
    /// None where nothing is compressed.
    all: Arc<[Recipe]>,
}

/// What is different from file to file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Recipe {
    pcluster: usize,
    method: Method,
}

impl Recipes {
    /// Those of the options and of their hints.
    pub(crate) fn new(options: &Options) -> Result<Self> {
        let rules = Rules::new(options)?;
        let Some(algorithms) = &options.algorithms else {
            return Ok(Self { rules, all: Arc::default() });
        };
        let method = |number| nth_method(algorithms, number);
        let default = Recipe { pcluster: rules.pcluster, method: method(algorithms.default)? };
        let mut all = vec![default];
        for hint in options.hints.all().iter().filter(|hint| hint.pcluster_bytes > 0) {
            let pcluster = hint.pcluster_bytes as usize;
            let recipe = Recipe { pcluster, method: method(hint.method)? };
            if !all.contains(&recipe) {
                all.push(recipe);
            }
        }
        Ok(Self { rules, all: all.into() })
    }

    /// The one of the packed inode, whose pclusters may have another size.
    pub(crate) fn of_packed(&self, options: &Options) -> Self {
        let rules = self.rules.of_packed(options);
        let first = self.all.iter().take(1);
        let all = first.map(|recipe| Recipe { pcluster: rules.pcluster, ..*recipe }).collect();
        Self { rules, all }
    }

    /// The one of the metabox, which may have an algorithm of its own, too.
    pub(crate) fn of_metabox(&self, options: &Options) -> Result<Self> {
        let rules = self.rules.of_metabox(options);
        let method = match (&options.algorithms, options.metabox_method) {
            (Some(algorithms), Some(number)) => Some(nth_method(algorithms, number)?),
            _ => self.all.first().map(|recipe| recipe.method),
        };
        let recipe = method.map(|method| Recipe { pcluster: rules.pcluster, method });
        Ok(Self { rules, all: recipe.into_iter().collect() })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// The pcluster of a recipe, in bytes.
    pub(crate) fn pcluster(&self, number: usize) -> usize {
        self.all.get(number).map_or(self.rules.pcluster, |recipe| recipe.pcluster)
    }

    /// A compressor for the recipe with this number.
    pub(crate) fn compressor(&self, number: usize) -> Result<Compressor> {
        let none = || Error::new(ErrorKind::Defect("something to encode, and no algorithm"));
        let Recipe { pcluster, method } = self.all.get(number).copied().ok_or_else(none)?;
        Compressor::new(Rules { pcluster, ..self.rules }, &method)
    }

    /// What compressors for all recipes take together, in bytes: each is made once, to see that its parameters are
    /// right.
    pub(crate) fn memory_bytes(&self) -> Result<u64> {
        let each = (0..self.count()).map(|number| Ok(self.compressor(number)?.memory_bytes()));
        each.sum()
    }

    /// How the file at `path` is stored.
    pub(crate) fn choose(&self, options: &Options, path: &[u8]) -> Choice {
        let (Some(algorithms), Some(hint)) = (&options.algorithms, options.hints.find(path)) else {
            return Choice::default();
        };
        if hint.pcluster_bytes == 0 {
            return Choice::AsIs;
        }
        let pcluster = hint.pcluster_bytes as usize;
        let method = algorithms.methods.get(hint.method);
        let is_it = |recipe: &Recipe| recipe.pcluster == pcluster && Some(&recipe.method) == method;
        self.all.iter().position(is_it).map_or(Choice::default(), Choice::Recipe)
    }
}

fn nth_method(algorithms: &Algorithms, number: usize) -> Result<Method> {
    let missing = || {
        let what = format!("algorithm number {number}, of {}", algorithms.methods.len());
        Error::new(ErrorKind::Options(what))
    };
    algorithms.methods.get(number).copied().ok_or_else(missing)
}
