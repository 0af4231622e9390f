//! `archive`: keeps builds in SQL.
