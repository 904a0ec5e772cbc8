#pragma once
// One self-contained HTML page from runs that a JsonlTracker wrote.
#include <filesystem>
#include <string>
#include <vector>

namespace tutti {

/// The page over `runs` under `title` (unset: the runs' names), each a .jsonl file or a folder that holds
/// metrics.jsonl; several are overlaid. Curves of "loss", "eval/loss", "lr", "grad_norm" and every other scalar; where
/// a step's time goes ("time/rank_R/forward", "backward", "waiting", "optimizer", "data", "other": seconds of the steps
/// since the last log) by rank; the hyperparameters side by side. It works without network and without JavaScript
/// (which only adds reading off values). Throws UsageError for a run that is not there or holds no line of ours.
std::string render_report(const std::vector<std::filesystem::path>& runs, const std::string& title = "");

}  // namespace tutti
