#pragma once
// A self-contained HTML page from the files of a JsonlTracker.
#include <filesystem>
#include <string>
#include <vector>

namespace tutti {

/// Returns the page of `runs` under `title` (empty: the names of the runs). A run is a .jsonl file, or a folder with
/// metrics.jsonl. The page overlays several runs and shows:
/// - curves of "loss", "eval/loss", "lr", "grad_norm" and every other scalar;
/// - the time of a step by rank ("time/rank_R/forward", "backward", "waiting", "optimizer", "data", "other": seconds of
///   the steps since the last log);
/// - the hyperparameters side by side.
/// The page needs no network. JavaScript is optional; it shows values under the pointer. Throws UsageError for a run
/// that does not exist or holds no line of a JsonlTracker.
std::string render_report(const std::vector<std::filesystem::path>& runs, const std::string& title = "");

}  // namespace tutti
