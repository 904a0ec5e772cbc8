#include "local_sgd/table.h"

#include "report/statistics.h"

namespace tutti::bench {
namespace {

Statistics spread_of(const Results& runs, const std::string& method, const char* figure) {
  std::vector<double> values;
  for (const Row& run : runs.rows) {
    if (run.labels.at("method") == method) values.push_back(run.labels.at(figure));
  }
  return statistics_of(values);
}

std::string mean_cell(const Statistics& statistics, int decimals) {
  return number(statistics.mean, decimals) + " (" + range(statistics, decimals) + ")";
}

}  // namespace

int report_local_sgd(Report& report, const Results& runs, const LocalSGDBenchOptions& options) {
  const auto methods = runs.values_of("method");
  const std::string baseline = methods.front();
  const auto mean = [&](const std::string& method, const char* figure) { return spread_of(runs, method, figure).mean; };
  report.add_table({"method", "steps between exchanges", "seconds", "faster than " + baseline, "MB sent by a rank",
                    "fewer bytes", "stalled s", "held-out loss", "to " + baseline});
  for (const std::string method : methods) {
    const auto interval = runs.find({{"method", method}})->labels.at("local_steps").get<std::int64_t>();
    const auto seconds = spread_of(runs, method, "seconds");
    const auto loss = spread_of(runs, method, "held_out_loss");
    const double bytes = mean(method, "bytes_sent");
    const double more_loss = 100 * (loss.mean / mean(baseline, "held_out_loss") - 1);
    report.add_row({method, interval > 0 ? std::to_string(interval) : "every", mean_cell(seconds, 1),
                    number(mean(baseline, "seconds") / seconds.mean, 1) + "x", number(bytes / 1e6, 2),
                    bytes > 0 ? number(mean(baseline, "bytes_sent") / bytes, 0) + "x" : "-",
                    number(mean(method, "seconds_blocked"), 2), mean_cell(loss, 4),
                    (more_loss >= 0 ? "+" : "") + number(more_loss, 1) + "%"});
  }
  report.add_note(describe(options) + ", one thread each; " + counted(options.steps, "optimizer step") + " of " +
                  counted(options.batch_size, "window") + " of " + counted(options.context, "byte") +
                  " a rank; mean over " + counted(options.seeds, "seed") + " (least-most)");
  report.add_note(options.validate ? "held-out loss: on the half of the held-out text on which options are chosen"
                                   : "held-out loss: on the half of the held-out text on which no option was chosen");
  report.add_json(runs, {{"ranks", options.ranks},
                         {"nodes", options.nodes},
                         {"rate", options.nodes > 1 ? options.rate : ""},
                         {"steps", options.steps},
                         {"validate", options.validate}});
  return report.finish(options.json);
}

}  // namespace tutti::bench
