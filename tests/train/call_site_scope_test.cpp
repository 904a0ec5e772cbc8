// The line of the program that the flight record has for a rank's calls. Ranks: 2 processes.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <map>
#include <set>

#include "flight/rank_record.h"
#include "support/ranks.h"
#include "train/training_run.h"
#include "tutti/train/local_sgd.h"
#include "tutti/train/trainer.h"

namespace tutti::test::call_site_scope_test {
namespace {

const std::string this_file = CallSite::here().file;

bool in_this_file(const std::string& place) {
  return place.starts_with(this_file + ":");
}

/// The places of a rank's operations, by their text.
using Places = std::map<std::string, std::set<std::string>>;

/// The flight record of rank 0 of two ranks.
Places places_in(const RankProgram& program) {
  const TemporaryFolder folder;
  expect_success(run_processes(program, 2, {.variables = {{"TUTTI_FLIGHT_RECORDS", folder.path().string()}}}));
  Places places;
  for (const auto& operation : flight::read_record(folder.path() / "rank_0.flight").operations) {
    places[operation.text].insert(operation.call_site);
  }
  return places;
}

/// The places of operations whose text contains `part`.
std::set<std::string> places_of(const std::string& part, const Places& places) {
  std::set<std::string> found;
  for (const auto& [text, of_text] : places) {
    if (text.find(part) != std::string::npos) found.insert(of_text.begin(), of_text.end());
  }
  return found;
}

void expect_only_this_file(const std::string& part, const Places& places) {
  const auto found = places_of(part, places);
  EXPECT_FALSE(found.empty()) << part;
  for (const auto& place : found) EXPECT_TRUE(in_this_file(place)) << part << ": " << place;
}

void expect_this_file_among(const std::string& part, const Places& places) {
  EXPECT_TRUE(std::ranges::any_of(places_of(part, places), in_this_file)) << part;
}

/// Expects that no operation names a source file of tutti as its place, including operations that no test names.
void expect_no_source_of_tutti(const Places& places) {
  for (const auto& [text, of_text] : places) {
    for (const auto& place : of_text) {
      EXPECT_TRUE(place.empty() || place == "backward()" || in_this_file(place)) << text << ": " << place;
    }
  }
}

const RankProgram calls_everything("call_site_everything", [] {
  Accelerator accelerator({.gradient_accumulation_steps = 1});
  auto loader = accelerator.data_loader(Samples{8}, {.batch_size = 2});
  Mlp net;
  auto [model, optimizer, plateau] =
      accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1), PlateauOptions{});
  for (int step = 0; step < 2; ++step) {
    const Batch batch = batch_of(step);
    {
      const auto window = accelerator.accumulate(model);
      accelerator.backward(loss_of(model->forward(batch.input), batch.target));
      accelerator.clip_grad_norm_(model, 1.0);
      optimizer.step();
      optimizer.zero_grad();
    }
    plateau.step(1.0);
  }
  const at::Tensor rows = at::ones({2, 2});
  (void)accelerator.gather(rows);
  (void)accelerator.reduce(rows, ReduceOp::mean);
  (void)accelerator.pad_across_processes(rows);
  (void)accelerator.gather_object(std::vector<std::string>{"text"});
  (void)accelerator.check_trigger();
  { const auto scope = accelerator.main_process_first(); }
  accelerator.wait_for_everyone();
  std::string path = TemporaryFolder().path();  // rank 0's path, whose folder does not exist any more
  path = accelerator.broadcast_object(path);
  accelerator.save_state({.folder = path});
  accelerator.load_state(path);
  accelerator.wait_for_everyone();
  if (accelerator.is_main_process()) std::filesystem::remove_all(path);
});

TEST(CallSiteScope, CallsThroughAnAcceleratorNameTheProgramsFile) {
  const Places places = places_in(calls_everything);
  for (const char* part :
       {"'data_loader'", "'metric'", "'gather'", "'reduce(", "pad_across_processes", "'gather_object(", "check_trigger",
        "main_process_first", "wait_for_everyone", "'broadcast_object(", "'save_state'", "'load_state'"}) {
    expect_only_this_file(part, places);
  }
  expect_this_file_among("gradient sum", places);
  expect_no_source_of_tutti(places);
}

const RankProgram plain_loop("call_site_plain_loop", [] {
  Accelerator accelerator({.sync_policy = SyncPolicy::every_pass});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const Batch batch = batch_of(0);
  loss_of(model->forward(batch.input), batch.target).backward();
  optimizer.step();
});

TEST(CallSiteScope, GradientsAreThoseOfBackwardWhereNoLineIsKnown) {
  const Places places = places_in(plain_loop);
  EXPECT_EQ(places_of("gradient sum", places), std::set<std::string>{"backward()"});
  expect_no_source_of_tutti(places);
}

const RankProgram takes_local_steps("call_site_local_steps", [] {
  Accelerator accelerator;
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  LocalSGD local_sgd(accelerator, model, {.local_sgd_steps = 1});
  const Batch batch = batch_of(0);
  accelerator.backward(loss_of(model->forward(batch.input), batch.target));
  optimizer.step();
  local_sgd.step();
  local_sgd.finish();
});

TEST(CallSiteScope, LocalStepsToo) {
  const Places places = places_in(takes_local_steps);
  expect_this_file_among("gradient sum", places);
  expect_no_source_of_tutti(places);
}

const RankProgram trains("call_site_trainer", [] {
  Accelerator accelerator;
  auto loader = accelerator.data_loader(Samples{8}, {.batch_size = 2});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  Trainer<Mlp, decltype(loader)> trainer(
      accelerator, net, optimizer, std::nullopt, loader,
      {.loss = [](Mlp& module, Batch& batch) { return loss_of(module->forward(batch.input), batch.target); }},
      {.max_steps = 2, .log_every = 1, .progress_bar = false});
  trainer.fit();
});

TEST(CallSiteScope, ATrainersCallsAreThoseOfFit) {
  const Places places = places_in(trains);
  expect_only_this_file("step metrics", places);
  expect_only_this_file("stage times", places);
  EXPECT_EQ(places_of("step metrics", places), places_of("stage times", places));
  expect_no_source_of_tutti(places);
}

}  // namespace
}  // namespace tutti::test::call_site_scope_test
