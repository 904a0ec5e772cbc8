// Random runs of a Trainer that signals interrupt, compared with the same run without an interruption: parameters,
// schedule, callbacks, evaluations and kept checkpoints, also with local steps, and on another number of ranks. 1 and 2
// ranks as threads. A failure names its seed: TUTTI_SEED=n replays it, TUTTI_MOVES=m runs m programs from there.
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "support/rank_case.h"
#include "support/replay.h"
#include "support/temporary_folder.h"
#include "train/training_run.h"
#include "tutti/optim/plateau.h"
#include "tutti/optim/schedules.h"
#include "tutti/train/callbacks/best_model.h"
#include "tutti/train/callbacks/early_stopping.h"
#include "tutti/train/callbacks/ema.h"
#include "tutti/train/local_sgd.h"
#include "tutti/train/trainer.h"

namespace tutti::test::random_runs_test {
namespace {

struct RunProgram {
  int ranks = 1;
  bool keeps_ranks = true;  ///< a resumed run has as many ranks
  double dropout = 0;
  std::int64_t samples = 8;
  int accumulation = 1;
  DataLoaderOptions data{};
  TrainerOptions options{};
  RetentionOptions retention{};
  bool follows_plateau = false;
  bool weighted = false;
  bool has_ema = false;
  bool has_best_model = false;
  std::optional<int> early_stopping{};
  std::optional<LocalSGDOptions> local_sgd{};
  std::set<std::int64_t> signals;  ///< micro-batches of the run, from 1, in which a signal arrives
};

class RunGenerator {
 public:
  explicit RunGenerator(std::uint64_t seed) : random_(seed) {}

  /// Without `keeps_ranks` the result may depend on the samples of a step only, not on how they are distributed.
  RunProgram program(bool keeps_ranks) {
    RunProgram program;
    program.keeps_ranks = keeps_ranks;
    program.ranks = keeps_ranks ? 1 + static_cast<int>(below(2)) : 2;
    if (program.ranks == 1) program.dropout = 0.3;  // ranks as threads share a generator
    program.samples = 4 + static_cast<std::int64_t>(below(20));
    program.accumulation = chance(50) ? 1 : 1 + static_cast<int>(below(3));
    program.data = {.batch_size = 1 + static_cast<std::int64_t>(below(2)),
                    .shuffle = chance(70),
                    .seed = 5,
                    .sharding = chance(70) ? Sharding::interleaved : Sharding::batches,
                    .drop_last = chance(20),
                    .num_workers = chance(15) ? 1 : 0};
    if (!keeps_ranks) {
      program.data.drop_last = false;
      program.data.even_batches = chance(50);
    }
    if (!keeps_ranks && program.data.even_batches) {  // without samples that one number of ranks repeats
      program.samples += program.samples % 2;
      program.data.sharding = Sharding::interleaved;
    }
    TrainerOptions& options = program.options;
    const bool by_epochs = chance(60);
    if (by_epochs) options.max_epochs = 1 + static_cast<std::int64_t>(below(4));
    if (!by_epochs || chance(20)) options.max_steps = 3 + static_cast<std::int64_t>(below(20));
    if (chance(50)) options.max_grad_norm = 0.5;
    options.log_every = static_cast<std::int64_t>(below(4));
    options.evaluate_every = interval();
    options.save_every = interval();
    program.retention = {.keep_last = chance(50) ? std::optional<int>(1 + static_cast<int>(below(2))) : std::nullopt};
    if (!options.evaluate_every.is_never() && chance(40)) {
      program.retention.keep_best = true;
      options.save_every = options.evaluate_every;
    }
    options.resume = true;
    options.asynchronous_checkpoints = chance(50);
    options.progress_bar = false;
    program.follows_plateau = !options.evaluate_every.is_never() && chance(30);
    program.weighted = !keeps_ranks || chance(30);
    program.has_ema = chance(40);
    program.has_best_model = !options.evaluate_every.is_never() && chance(40);
    if (!options.evaluate_every.is_never() && chance(30)) program.early_stopping = 1 + static_cast<int>(below(2));
    if (keeps_ranks && chance(30)) program.local_sgd = local_sgd(program.follows_plateau);
    for (std::uint64_t signals = 1 + below(3); signals > 0; --signals)
      program.signals.insert(1 + static_cast<std::int64_t>(below(30)));
    return program;
  }

 private:
  std::uint64_t below(std::uint64_t end) { return random_() % end; }
  bool chance(unsigned percent) { return below(100) < percent; }
  TrainerInterval interval() {
    const auto count = static_cast<std::int64_t>(below(4));
    return chance(50) ? TrainerInterval(count) : TrainerInterval::epochs(count);
  }
  /// SlowMo divides by the learning rate, which a schedule may make 0.
  LocalSGDOptions local_sgd(bool may_divide_by_rate) {
    LocalSGDOptions options{.local_sgd_steps = 1 + static_cast<std::int64_t>(below(5))};
    LocalSgdAlgorithmOptions& algorithm = options.algorithm;
    algorithm.warmup_steps = chance(30) ? static_cast<std::int64_t>(below(6)) : 0;
    if (chance(40)) algorithm.outer_optimizer = OuterOptimizer::diloco;
    if (may_divide_by_rate && chance(50)) algorithm.outer_optimizer = OuterOptimizer::slowmo;
    algorithm.wire = std::array{WireFormat::fp32, WireFormat::bf16, WireFormat::int8}.at(below(3));
    algorithm.state_sync.momentum = chance(50) ? MomentumRule::local : MomentumRule::average;
    const bool may_stream =
        algorithm.outer_optimizer != OuterOptimizer::slowmo && algorithm.state_sync.momentum == MomentumRule::local;
    if (may_stream && chance(50)) {
      StreamingOptions& streaming = algorithm.streaming;
      streaming.fragments = 1 + static_cast<int>(below(static_cast<std::uint64_t>(options.local_sgd_steps)));
      streaming.overlap_steps =
          static_cast<std::int64_t>(below(static_cast<std::uint64_t>(options.local_sgd_steps / streaming.fragments)));
      streaming.keep_local_progress = chance(40);
      if (!streaming.keep_local_progress && chance(50)) streaming.mix = 0.5;
    }
    return options;
  }
  std::mt19937_64 random_;
};

std::string describe(const RunProgram& program) {
  const auto text_of = [](TrainerInterval every) {
    return std::to_string(every.count()) + (every.in_epochs() ? " epochs" : " steps");
  };
  std::ostringstream text;
  const TrainerOptions& options = program.options;
  text << program.ranks << (program.keeps_ranks ? "" : " and 1") << " ranks, " << program.samples
       << " samples in batches of " << program.data.batch_size << (program.data.shuffle ? " shuffled" : "")
       << (program.data.drop_last ? " drop_last" : "") << (program.data.sharding == Sharding::batches ? " whole" : "")
       << (program.data.even_batches ? "" : " uneven") << ", accumulation " << program.accumulation << ", max_epochs "
       << options.max_epochs.value_or(-1) << ", max_steps " << options.max_steps.value_or(-1) << ", evaluate_every "
       << text_of(options.evaluate_every) << ", save_every " << text_of(options.save_every) << ", log_every "
       << options.log_every << ", keep_last " << program.retention.keep_last.value_or(-1)
       << (program.retention.keep_best ? ", keep_best" : "") << (program.follows_plateau ? ", plateau" : "")
       << (program.weighted ? ", weighted" : "") << (program.has_ema ? ", Ema" : "")
       << (program.has_best_model ? ", BestModel" : "") << ", early stopping after "
       << program.early_stopping.value_or(-1);
  if (program.local_sgd) {
    const LocalSgdAlgorithmOptions& algorithm = program.local_sgd->algorithm;
    text << ", local steps " << program.local_sgd->local_sgd_steps << " after " << algorithm.warmup_steps << ", outer "
         << static_cast<int>(algorithm.outer_optimizer) << ", wire " << static_cast<int>(algorithm.wire)
         << ", momentum " << static_cast<int>(algorithm.state_sync.momentum) << ", fragments "
         << algorithm.streaming.fragments << " overlap " << algorithm.streaming.overlap_steps << " mix "
         << algorithm.streaming.mix << (algorithm.streaming.keep_local_progress ? " keeps progress" : "");
  }
  text << (options.asynchronous_checkpoints ? ", asynchronous" : "") << ", signals in";
  for (const std::int64_t signal : program.signals) text << ' ' << signal;
  return text.str();
}

/// Records events in its state, and sends SIGTERM in some micro-batches.
struct Events final : Callback {
  std::string log;
  std::int64_t micro_batches = 0;
  std::set<std::int64_t> signals;
  LocalSGD* local_sgd = nullptr;
  std::string name() const override { return "events"; }
  StateDict state_dict() const override {
    StateDict state;
    state.set("log", log);
    state.set("micro_batches", micro_batches);
    return state;
  }
  void load_state_dict(const StateDict& state) override {
    log = state.get<std::string>("log");
    micro_batches = state.get<std::int64_t>("micro_batches");
  }
  void on_step_start(TrainerContext& trainer) override {
    if (signals.contains(++micro_batches) && trainer.accelerator().is_main_process()) ::raise(SIGTERM);
  }
  void on_evaluate_end(TrainerContext& trainer, const Scalars& results) override {
    add("evaluated", trainer);
    log += std::to_string(results[0].second) + ' ';
  }
  void on_epoch_end(TrainerContext& trainer) override { add("ended", trainer); }
  void on_optimizer_step_end(TrainerContext& trainer) override {
    if (local_sgd != nullptr) local_sgd->step();
    add("step", trainer);
    log += std::to_string(trainer.metrics().loss) + ' ' + std::to_string(trainer.metrics().learning_rate) + ' ';
  }
  void add(const std::string& what, const TrainerContext& trainer) {
    log += what + ' ' + std::to_string(trainer.global_step()) + ' ';
  }
};

/// Of one rank.
struct Progress {
  std::set<std::int64_t> signals;  ///< that are still to come
  std::string result;              ///< what the run has done and made; empty while it has not ended
};

/// Runs the program until its end or a signal.
void run(const RunProgram& program, Progress& progress, const std::filesystem::path& folder,
         const Communicator& communicator) {
  Accelerator accelerator({.gradient_accumulation_steps = program.accumulation,
                           .project = {.project_dir = folder, .retention = program.retention},
                           .communicator = communicator});
  accelerator.set_seed(3);
  DataLoaderOptions data = program.data;
  data.batch_size *= program.ranks / communicator.size();
  auto loader = accelerator.data_loader(Samples{program.samples}, data);
  Noisy net(program.dropout);
  torch::optim::AdamW adamw(net->parameters(), 0.05);
  auto [optimizer, schedule] = [&]() -> std::pair<Optimizer, TrainerSchedule> {
    if (program.follows_plateau) {
      auto [model, prepared, plateau] = accelerator.prepare(net, adamw, PlateauOptions{.patience = 0});
      return {prepared, plateau};
    }
    auto [model, prepared, by_step] = accelerator.prepare(net, adamw, linear_with_warmup(2, 30));
    return {prepared, by_step};
  }();
  std::optional<LocalSGD> local_sgd;
  if (program.local_sgd) local_sgd.emplace(accelerator, net, *program.local_sgd);
  Trainer<Noisy, DataLoader<Samples>> trainer(
      accelerator, net, optimizer, schedule, loader,
      {.loss =
           [&](Noisy& model, Batch& batch) {
             const at::Tensor loss = loss_of(model->forward(batch.input), batch.target);
             return program.weighted ? loss * static_cast<double>(batch.input.size(0)) : loss;
           },
       .weight = program.weighted
                     ? std::function([](const Batch& batch) { return static_cast<double>(batch.input.size(0)); })
                     : nullptr},
      program.options);
  trainer.set_evaluation([&] {
    double sum = 0;
    for (const at::Tensor& parameter : net->parameters()) sum += parameter.abs().sum().item<double>();
    const at::Tensor mean = accelerator.reduce(torch::tensor(sum, torch::kDouble), ReduceOp::mean);
    return Scalars{{"loss", mean.item<double>()}};
  });
  const auto events = std::make_shared<Events>();
  events->signals = progress.signals;
  events->local_sgd = local_sgd ? &*local_sgd : nullptr;
  trainer.add_callback(events);
  const auto ema = std::make_shared<Ema>();
  if (program.has_ema) trainer.add_callback(ema);
  const auto best = std::make_shared<BestModel>();
  if (program.has_best_model) trainer.add_callback(best);
  const auto stopping =
      std::make_shared<EarlyStopping>(EarlyStoppingOptions{.patience = program.early_stopping.value_or(1)});
  if (program.early_stopping) trainer.add_callback(stopping);
  std::optional<JoinScope> join;
  if (!program.data.even_batches) join.emplace(accelerator.join_uneven_inputs());
  const StopReason reason = trainer.fit();
  join.reset();
  std::erase_if(progress.signals, [&](std::int64_t signal) { return signal <= events->micro_batches; });
  communicator.barrier().wait();
  if (local_sgd) local_sgd->finish();
  if (reason == StopReason::signal) return;
  std::ostringstream result;
  result << events->log << "\nparameters";
  if (program.keeps_ranks) {
    result << ' ' << std::hash<std::string>{}(bytes_of(*net));
  } else {
    for (const at::Tensor& parameter : net->parameters()) result << ' ' << parameter.abs().sum().item<double>();
  }
  result << "\nbest " << best->best() << "\nbad evaluations " << stopping->bad_evaluations() << "\naverage";
  for (const auto& [name, average] : ema->average()) result << ' ' << average.sum().item<double>();
  result << "\nlast evaluation";
  for (const auto& [name, value] : trainer.last_evaluation()) result << ' ' << name << ' ' << value;
  accelerator.wait_for_checkpoint();
  if (program.retention.keep_best) {
    double least = std::numeric_limits<double>::infinity();
    for (const CheckpointInfo& info : CheckpointFolder(folder / "checkpoints").all())
      least = std::min(least, info.metric.value_or(least));
    result << "\nbest checkpoint " << least;
  }
  communicator.barrier().wait();
  progress.result = result.str();
}

/// The results of the ranks of the last run. Where the program does not keep its ranks, runs alternate between one
/// rank and all.
std::vector<std::string> results_of(const RunProgram& program, const std::set<std::int64_t>& signals) {
  const TemporaryFolder folder;
  std::set<std::int64_t> coming = signals;
  for (int runs = 0; runs < 6; ++runs) {
    const int ranks = program.keeps_ranks || runs % 2 == 0 ? program.ranks : 1;
    std::vector<Progress> progress(static_cast<std::size_t>(ranks), {.signals = coming, .result = {}});
    run_thread_ranks(ranks,
                     [&](const Communicator& communicator) {
                       run(program, progress[static_cast<std::size_t>(communicator.rank())], folder.path(),
                           communicator);
                     },
                     {.timeout = std::chrono::seconds(60)});
    coming = progress[0].signals;
    if (progress[0].result.empty()) continue;
    std::vector<std::string> results;
    for (const Progress& of_rank : progress) results.push_back(of_rank.result);
    return results;
  }
  return {"the run does not end"};
}

/// Equal words, or numbers that differ by rounding.
bool are_close(const std::string& actual, const std::string& expected) {
  std::istringstream words(actual);
  std::istringstream expected_words(expected);
  for (std::string word, expected_word;;) {
    const bool has_word = static_cast<bool>(words >> word);
    if (has_word != static_cast<bool>(expected_words >> expected_word)) return false;
    if (!has_word) return true;
    if (word == expected_word) continue;
    char* end = nullptr;
    const double value = std::strtod(word.c_str(), &end);
    if (*end != '\0' || std::abs(value - std::strtod(expected_word.c_str(), &end)) > 1e-3 || *end != '\0') return false;
  }
}

void expect_as_without_interruption(bool keeps_ranks, std::uint64_t programs_to_run) {
  const auto [first, programs] = seeds_to_run(programs_to_run);
  for (std::uint64_t seed = first; seed < first + programs; ++seed) {
    const RunProgram program = RunGenerator(seed).program(keeps_ranks);
    std::string wrong;
    testing::internal::CaptureStderr();
    try {
      const std::vector<std::string> expected = results_of(program, {});
      const std::vector<std::string> actual = results_of(program, program.signals);
      for (std::size_t rank = 0; rank < std::min(expected.size(), actual.size()); ++rank) {
        if (actual[rank] == expected[rank] || (!keeps_ranks && are_close(actual[rank], expected[rank]))) continue;
        wrong += actual[rank] + "\nwhere a run without an interruption has\n" + expected[rank] + '\n';
      }
    } catch (const std::exception& error) {
      wrong = std::string("an exception: ") + error.what();
    }
    const std::string log = testing::internal::GetCapturedStderr();
    ASSERT_EQ(wrong, "") << "replay it with TUTTI_SEED=" << seed << '\n' << describe(program) << '\n' << log;
  }
}

TEST(RandomRuns, EndAsWithoutAnInterruption) {
  expect_as_without_interruption(/*keeps_ranks=*/true, 40);
}

TEST(RandomRuns, EndAsWithoutAnInterruptionOnAnotherNumberOfRanks) {
  expect_as_without_interruption(/*keeps_ranks=*/false, 20);
}

}  // namespace
}  // namespace tutti::test::random_runs_test
