//! Ranks as the cells of a grid, row by row.

/// How many rows and columns of ranks there are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grid {
    pub(crate) rows: u32,
    pub(crate) columns: u32,
}

impl Grid {
    /// As near to a square as `ranks` allow, at least as wide as high.
    pub(crate) fn of(ranks: u32) -> Grid {
        let rows = (1..=ranks).rev().find(|rows| rows * rows <= ranks && ranks.is_multiple_of(*rows)).unwrap_or(1);
        Grid { rows, columns: ranks / rows }
    }

    /// Row and column of `rank`.
    pub(crate) fn cell(self, rank: u32) -> (u32, u32) {
        (rank / self.columns, rank % self.columns)
    }
}
