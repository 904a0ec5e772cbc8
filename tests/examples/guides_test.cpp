// The programs of README and docs/guides on 1, 2 and 3 ranks.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <numbers>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/python.h"
#include "data/data_files.h"
#include "examples/programs.h"
#include "launch/tutti_process.h"
#include "support/temporary_folder.h"
#include "tutti/checkpoint/safetensors.h"
#include "tutti/optim/schedules.h"

namespace tutti::test::guides_test {
namespace {

std::string program(const std::string& name, int ranks, const std::string& arguments = "") {
  const std::string words = GUIDE_PROGRAMS + name + " " + arguments;
  return ranks == 1 ? words : std::string(TUTTI_COMMAND) + " launch -n " + std::to_string(ranks) + " -- " + words;
}

/// Returns the number after `text` in the last line with `text`.
double number_after(const std::string& text, const std::string& output) {
  std::smatch number;
  const std::string rest = from_last(text, output).substr(0, 200);
  if (rest.empty() || !std::regex_search(rest, number, std::regex(":? ([-+0-9.e]+)$"))) {
    ADD_FAILURE() << "no number behind '" << text << "' in: " << output;
    return -1;
  }
  return std::stod(number[1]);
}

TEST(ReadmeProgram, LearnsOnOneRankAndOnTwo) {
  for (const int ranks : {1, 2}) {
    const auto finished = run(program("readme_program", ranks));
    ASSERT_EQ(finished.exit_code, 0) << finished.output;
    std::smatch loss;
    ASSERT_TRUE(std::regex_search(finished.output, loss, std::regex("epoch 10, loss ([0-9.]+)\n$"))) << finished.output;
    EXPECT_LT(std::stod(loss[1]), 0.05) << ranks;
  }
}

TEST(Readme, HasAtMost120Lines) {
  const std::string readme = content_of(DOCS "../README.md");
  EXPECT_LE(std::count(readme.begin(), readme.end(), '\n'), 120);
}

TEST(FromZero, TheFirstProgramLearns) {
  const auto finished = run(program("first_program", 2));
  ASSERT_EQ(finished.exit_code, 0) << finished.output;
  EXPECT_LT(number_after("epoch 3, loss", finished.output), 0.01);
}

TEST(Guides, GradientAccumulationHasTheCountsOfThePage) {
  const auto finished = run(program("guide_gradient_accumulation", 2));
  ASSERT_EQ(finished.exit_code, 0) << finished.output;
  for (const auto* line :
       {"every pass: 87 backward passes, 87 exchanges", "no_sync around backward alone: 87 backward passes, 24",
        "no_sync around forward and backward: 87 backward passes, 24", "accumulate: 87 backward passes, 24 exchanges",
        "accumulate by weight: 87 backward passes, 24 exchanges", "a plain loop: 87 backward passes, 31 exchanges"}) {
    const auto found = from_last(line, finished.output);
    EXPECT_NE(found, "") << line << " is not in " << finished.output;
    EXPECT_NE(found.find("parameters differ by 0.0000"), std::string::npos) << found;
  }
}

TEST(Guides, SameResultRefusesRanksThatCannotShareAStep) {
  const auto finished = run(program("guide_same_result", 5) + " 2>&1");
  EXPECT_EQ(finished.exit_code, 1) << finished.output;
  EXPECT_TRUE(contains(finished.output, "24 samples, which 5 ranks cannot share equally")) << finished.output;
}

TEST(Guides, SameResultHoldsOnAnyNumberOfRanks) {
  for (const int ranks : {1, 2, 3}) {
    const auto finished = run(program("guide_same_result", ranks));
    ASSERT_EQ(finished.exit_code, 0) << finished.output;
    const std::regex line("parameters differ by at most ([0-9.e-]+)\n");
    int lines = 0;
    for (auto match = std::sregex_iterator(finished.output.begin(), finished.output.end(), line);
         match != std::sregex_iterator(); ++match, ++lines) {
      EXPECT_LT(std::stod((*match)[1]), 1e-5) << (*match)[0];
    }
    EXPECT_EQ(lines, 3) << finished.output;
  }
}

TEST(Guides, LocalSgdSendsLessAndLearns) {
  const auto finished = run(program("guide_local_sgd", 2));
  ASSERT_EQ(finished.exit_code, 0) << finished.output;
  const std::regex line("([A-Za-z ]+): held-out loss ([0-9.]+), ([0-9]+) kB sent");
  std::vector<double> losses, kilobytes;
  for (auto match = std::sregex_iterator(finished.output.begin(), finished.output.end(), line);
       match != std::sregex_iterator(); ++match) {
    losses.push_back(std::stod((*match)[2]));
    kilobytes.push_back(std::stod((*match)[3]));
  }
  ASSERT_EQ(losses.size(), 3U) << finished.output;
  for (const double loss : losses) EXPECT_LT(loss, 0.1);
  EXPECT_LT(kilobytes[1], kilobytes[0] / 7);
  EXPECT_LT(kilobytes[2], kilobytes[1]);
}

TEST(Guides, TrainStepByHandEqualsTheTrainerAndResumes) {
  for (const int ranks : {1, 2}) {
    const TemporaryFolder folder;
    const auto command = program("guide_train_step", ranks, folder.path().string());
    const auto finished = run(command);
    ASSERT_EQ(finished.exit_code, 0) << finished.output;
    const std::regex line(": ([0-9]+ steps, test loss [0-9.]+, digest [0-9a-f]+)");
    std::vector<std::string> ends;
    for (auto match = std::sregex_iterator(finished.output.begin(), finished.output.end(), line);
         match != std::sregex_iterator(); ++match) {
      ends.push_back((*match)[1]);
    }
    ASSERT_EQ(ends.size(), 2U) << finished.output;
    EXPECT_EQ(ends[0], ends[1]);
    // A second run resumes at the end of the first, and so does its callback.
    EXPECT_EQ(run(command).output, finished.output);
  }
}

TEST(Guides, SeveralMachinesSurvivesAKilledRank) {
  const TemporaryFolder whole, torn;
  const std::string restarts = std::string(TUTTI_COMMAND) + " launch -n 2 --max-restarts 1 -- " + GUIDE_PROGRAMS;
  const auto undisturbed = run(restarts + "guide_several_machines " + whole.path().string());
  ASSERT_EQ(undisturbed.exit_code, 0) << undisturbed.output;
  const auto disturbed = run(restarts + "guide_several_machines " + torn.path().string() + " 30 2>&1");
  ASSERT_EQ(disturbed.exit_code, 0) << disturbed.output;
  EXPECT_NE(disturbed.output.find("goes on after step 20"), std::string::npos) << disturbed.output;
  EXPECT_NE(disturbed.output.find("rank 1 failed"), std::string::npos) << disturbed.output;
  EXPECT_NE(from_last("digest ", undisturbed.output), "");
  EXPECT_EQ(from_last("digest ", disturbed.output), from_last("digest ", undisturbed.output));
}

// On two nodes of one rank, each with its own launcher. Each rank runs `before` in a shell, then the program.
std::string run_with_a_launcher_on_each_node(const std::string& before, const std::string& arguments) {
  const std::string script = before + "; exec " GUIDE_PROGRAMS "guide_several_machines " + arguments;
  std::optional<TuttiProcess> node_1;
  const auto node_0 = run_with_a_free_port([&](const std::string& port) {
    std::vector<std::string> options{"--max-restarts", "1",  "--nnodes",    "2", "--master-addr", "127.0.0.1",
                                     "--master-port",  port, "--node-rank", "1"};
    node_1.emplace(launch_script(1, script, options));
    options.back() = "0";
    return launch_script(1, script, options);
  });
  const auto ended = node_1->wait();
  const std::string output = node_0.second.out + node_0.second.err + ended.out + ended.err;
  EXPECT_EQ(node_0.second.exit_code, 0) << output;
  EXPECT_EQ(ended.exit_code, 0) << output;
  return output;
}

TEST(Guides, SeveralMachinesRestartWithALauncherOnEachNode) {
  const TemporaryFolder whole, torn, late;
  const auto undisturbed = run_with_a_launcher_on_each_node(":", whole.path().string());
  const auto disturbed = run_with_a_launcher_on_each_node(":", torn.path().string() + " 30");
  EXPECT_NE(disturbed.find("goes on after step 20"), std::string::npos) << disturbed;
  const auto absent =
      run_with_a_launcher_on_each_node("[ $RANK$TORCHELASTIC_RESTART_COUNT = 10 ] && exit 3", late.path().string());
  EXPECT_NE(absent.find("tutti: rank 0 failed"), std::string::npos) << absent;
  EXPECT_EQ(from_last("digest ", disturbed), from_last("digest ", undisturbed));
  EXPECT_EQ(from_last("digest ", absent), from_last("digest ", undisturbed));
}

TEST(Guides, FromAcceleratesRecipesWork) {
  std::set<std::string> reproducible;
  for (const int ranks : {1, 2, 4}) {
    const TemporaryFolder folder;
    const auto file = folder.path() / "tied.safetensors";
    const auto finished = run(program("guide_from_accelerate", ranks, file.string()));
    ASSERT_EQ(finished.exit_code, 0) << finished.output;
    EXPECT_EQ(number_after("early break, batches", finished.output), 6);
    EXPECT_EQ(number_after("frozen, first layer moved by", finished.output.substr(0, finished.output.find("unfrozen"))),
              0);
    EXPECT_GT(number_after("unfrozen, first layer moved by", finished.output), 1e-3);
    EXPECT_LT(number_after("several models, generator's loss", finished.output), 1);
    EXPECT_NEAR(number_after("plateau, rate", finished.output), 0.05 / 8, 1e-6);
    const std::string line = from_last("reproducible models, digests: ", finished.output);
    reproducible.insert(line.substr(0, line.find('\n')));
    EXPECT_LT(number_after("local, then synchronous, loss", finished.output), 0.5);
    // The file has the trained tensor, under one name.
    const auto saved = load_safetensors(file);
    ASSERT_EQ(saved.tensors.size(), 1U);
    EXPECT_TRUE(saved.tensors.contains("embedding.weight")) << saved.tensors.begin()->first;
  }
  EXPECT_EQ(reproducible.size(), 1U) << testing::PrintToString(reproducible);
}

TEST(Guides, DevicesTrainsOnWhatTheMachineHas) {
  for (const int ranks : {1, 2}) {
    const auto finished = run(program("guide_devices", ranks));
    ASSERT_EQ(finished.exit_code, 0) << finished.output;
    EXPECT_LT(number_after("epoch 4, loss", finished.output), 0.1) << ranks;
  }
  const auto refused = run(program("guide_devices", 2, "xpu") + " 2>&1");
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_NE(refused.output.find("device xpu"), std::string::npos) << refused.output;
}

/// Returns the first Python block of a page.
std::string python_of(const std::string& page) {
  const std::string text = content_of(page);
  const auto begin = text.find("```python\n") + 10;
  return text.substr(begin, text.find("```", begin) - begin);
}

TEST(Guides, AnExportedModelTrainsAsTheOneByHand) {
  if (!HAS_EXPORTED) GTEST_SKIP() << "tutti was built without the component exported";
  const auto python = python_from("TUTTI_TORCH_PYTHON");
  if (!python) GTEST_SKIP() << "set TUTTI_TORCH_PYTHON=$(tools/torch_python.sh LIBTORCH)";
  const TemporaryFolder folder;
  const std::string chdir = "import os, sys; os.chdir(sys.argv[1])\n", page = DOCS "guides/exported.md";
  const auto exported = run_python(*python, chdir + python_of(page), {folder.path().string()});
  ASSERT_EQ(exported.exit_code, 0) << exported.output;
  const std::string file = (folder.path() / "points.pt2").string(),
                    trained = (folder.path() / "points.safetensors").string();
  for (const int ranks : {1, 2}) {
    const auto finished = run(program("guide_exported", ranks, file + " " + trained));
    ASSERT_EQ(finished.exit_code, 0) << finished.output;
    const std::regex line("(by hand|exported): (loss [0-9.]+, digest [0-9a-f]+)");
    std::vector<std::string> ends;
    for (auto match = std::sregex_iterator(finished.output.begin(), finished.output.end(), line);
         match != std::sregex_iterator(); ++match) {
      ends.push_back((*match)[2]);
    }
    ASSERT_EQ(ends.size(), 2U) << finished.output;
    EXPECT_EQ(ends[0], ends[1]);
  }
  const auto loaded = run_python(*python, chdir + python_of(page) + R"(
from safetensors.torch import load_file
before = net.state_dict()["0.weight"].clone()
net.load_state_dict(load_file("points.safetensors"))
assert not torch.equal(before, net.state_dict()["0.weight"])
)",
                                 {folder.path().string()});
  EXPECT_EQ(loaded.exit_code, 0) << loaded.output;
}

/// The formulas of docs/guides/train_step.md.
TEST(Guides, TheFormulasOfTheSchedulesHold) {
  constexpr double warmup = 100, total = 1000;
  using Formula = std::function<double(double t)>;
  const auto p = [](double t) { return (t - warmup) / (total - warmup); };
  const auto half_cosine = [](double progress) { return (1 + std::cos(std::numbers::pi * progress)) / 2; };
  const auto after_warmup = [](const Formula& then) {
    return [then](double t) { return t < warmup ? t / warmup : then(t); };
  };
  const auto compare = [](const char* name, const LrSchedule& schedule, const Formula& formula) {
    for (std::int64_t t = 0; t < 1000; ++t) {
      ASSERT_NEAR(schedule.factor(t), formula(static_cast<double>(t)), 1e-12) << name << " at " << t;
    }
  };
  compare("constant_with_warmup", constant_with_warmup(100), after_warmup([](double) { return 1.0; }));
  compare("linear_with_warmup", linear_with_warmup(100, 1000), after_warmup([&](double t) { return 1 - p(t); }));
  compare("cosine_with_warmup", cosine_with_warmup(100, 1000),
          after_warmup([&](double t) { return half_cosine(p(t)); }));
  compare("cosine_with_hard_restarts", cosine_with_hard_restarts(100, 1000, 3),
          after_warmup([&](double t) { return half_cosine(std::fmod(3 * p(t), 1)); }));
  compare("cosine_with_min_lr", cosine_with_min_lr(100, 1000, 0.2),
          after_warmup([&](double t) { return 0.2 + 0.8 * half_cosine(p(t)); }));
  compare("polynomial", polynomial(100, 1000, 0.1, 2),
          after_warmup([&](double t) { return 0.1 + 0.9 * std::pow(1 - p(t), 2); }));
  compare("inverse_sqrt", inverse_sqrt(100),
          after_warmup([](double t) { return 1 / std::sqrt(1 + (t - warmup) / warmup); }));
  compare("warmup_stable_decay", warmup_stable_decay(100, 300, {.total_steps = 1000}),
          after_warmup([&](double t) { return t < 700 ? 1 : half_cosine((t - 700) / 300); }));
  compare("step", step(250, 0.5), [](double t) { return std::pow(0.5, std::floor(t / 250)); });
  compare("multi_step", multi_step({500, 800}, 0.3), [](double t) { return std::pow(0.3, (t >= 500) + (t >= 800)); });
  compare("exponential", exponential(0.997), [](double t) { return std::pow(0.997, t); });
  compare("one_cycle", one_cycle(1000), [&](double t) {
    const double peak = 0.3 * total - 1;
    const double lowest = 1 / 250'000.0;
    return t <= peak ? 1 + (1 / 25.0 - 1) * half_cosine(t / peak)
                     : lowest + (1 - lowest) * half_cosine((t - peak) / (total - 1 - peak));
  });
}

TEST(Guides, ThePictureOfTheSchedulesIsCurrent) {
  const auto drawn = run(program("guide_schedules", 1));
  EXPECT_EQ(drawn.exit_code, 0);
  EXPECT_EQ(drawn.output, content_of(DOCS "schedules.svg")) << "guide_schedules > docs/schedules.svg draws it again";
}

}  // namespace
}  // namespace tutti::test::guides_test
