#include "tutti/detail/tracking/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <set>

#include "launch/tutti_process.h"
#include "tracking/report/html.h"
#include "tracking/report/run_reader.h"
#include "tracking/report/tables.h"
#include "tracking/xml.h"
#include "tutti/core/error.h"
#include "tutti/tracking/jsonl_tracker.h"

namespace tutti::report_test {
namespace {

using test::count_of;
using test::TemporaryFolder;

void write_run(const std::filesystem::path& file, const std::string& name, double lr) {
  JsonlTracker tracker(file);
  tracker.start(name, {{"lr", lr}, {"model", std::string("<gpt>")}}, 0);
  for (int step = 10; step <= 1000; step += 10) {
    tracker.log(step, {{"loss", 2.0 + 30.0 / step},
                       {"zebra", 1.0},
                       {"lr", lr},
                       {"time/rank_0/forward", 1.0},
                       {"time/rank_1/forward", 2.0}});
  }
  tracker.log_text(1000, "sample", "</pre><script>alert(1)</script>");
}

TEST(Report, IsOneWellFormedPageWithoutNetwork) {
  const TemporaryFolder folder;
  write_run(folder.path() / "a.jsonl", "first", 0.1);
  write_run(folder.path() / "b" / "metrics.jsonl", "second", 0.2);
  const auto page = render_report({folder.path() / "a.jsonl", folder.path() / "b"});
  EXPECT_EQ(test::xml_problem(page), "");
  EXPECT_TRUE(page.starts_with("<!DOCTYPE html>"));
  for (const auto* word : {"src=", "href=", "@import", "url(http", "fetch("})
    EXPECT_EQ(count_of(page, word), 0) << word;
  EXPECT_EQ(count_of(page, "://"), 2);  // names of XML's vocabularies, which are never fetched
  EXPECT_EQ(count_of(page, "<script>"), 1);
  EXPECT_EQ(count_of(page, "<h1>first \u00B7 second</h1>"), 1);
  EXPECT_EQ(count_of(page, "prefers-color-scheme: dark"), 1);
}

TEST(Report, ShowsTheUsualScalarsFirstAndNoTimesAmongTheCurves) {
  const TemporaryFolder folder;
  write_run(folder.path() / "a.jsonl", "first", 0.1);
  const auto page = render_report({folder.path() / "a.jsonl"});
  const auto loss = page.find("<h3>loss</h3>");
  const auto lr = page.find("<h3>lr</h3>");
  const auto zebra = page.find("<h3>zebra</h3>");
  EXPECT_LT(loss, lr);
  EXPECT_LT(lr, zebra);
  EXPECT_LT(zebra, page.find("Where a step\u2019s time goes"));
  EXPECT_EQ(count_of(page, "<h3>time/"), 0);
  EXPECT_EQ(count_of(page, ">rank 1</text>"), 2);  // in the wide figure and in the narrow one
}

TEST(Report, ShowsTheEvaluationTogetherAndNoEpoch) {
  const TemporaryFolder folder;
  JsonlTracker tracker(folder.path() / "a.jsonl");
  tracker.start("first", {}, 0);
  for (const int step : {1, 2}) {
    tracker.log(step, {{"epoch", 1.0 * step},
                       {"eval/accuracy", 0.5},
                       {"eval/loss", 1.0},
                       {"grad_norm", 4.0},
                       {"grad_norm_post_clip", 1.0},
                       {"loss", 1.0},
                       {"lr", 0.1}});
  }
  const auto page = render_report({folder.path() / "a.jsonl"});
  std::size_t before = 0;
  for (const auto* name : {"loss", "eval/loss", "eval/accuracy", "lr", "grad_norm"}) {
    const auto place = page.find("<h3>" + std::string(name) + "</h3>");
    ASSERT_NE(place, std::string::npos) << name;
    EXPECT_LT(before, place) << name;
    before = place;
  }
  EXPECT_EQ(count_of(page, "<h3>epoch</h3>"), 0);
  EXPECT_EQ(count_of(page, "<h3>grad_norm_post_clip</h3>"), 0);
  EXPECT_GT(count_of(page, "after clipping"), 0);
}

// `./dev docs` tests the page in a browser.
TEST(Report, HasFiguresAndATableForNarrowWindows) {
  const TemporaryFolder folder;
  write_run(folder.path() / "a.jsonl", "first", 0.1);
  const auto page = render_report({folder.path() / "a.jsonl"});
  EXPECT_EQ(count_of(page, "<figure class=\"chart wide\">"), 2);
  EXPECT_EQ(count_of(page, "<figure class=\"chart narrow\">"), 2);
  EXPECT_EQ(count_of(page, "<h3>loss</h3>"), 2);
  EXPECT_EQ(count_of(page, "<h3>lr</h3>"), 1);
  EXPECT_EQ(count_of(page, "id=\"hatch\""), 1);
  EXPECT_EQ(count_of(page, "id=\"hatch-narrow\""), 1);
  EXPECT_EQ(count_of(page, "data-label=\"Last loss\""), 1);
}

TEST(Report, EscapesTextOfFilesAndOfTheUser) {
  const TemporaryFolder folder;
  write_run(folder.path() / "a.jsonl", "<b>\"&'", 0.1);
  const auto page = render_report({folder.path() / "a.jsonl"}, "<i>title</i>");
  EXPECT_EQ(test::xml_problem(page), "");
  EXPECT_EQ(count_of(page, "<h1>&lt;i&gt;title&lt;/i&gt;</h1>"), 1);
  EXPECT_EQ(count_of(page, "<script>alert"), 0);
  EXPECT_EQ(count_of(page, "<b>\""), 0);
}

TEST(Report, DistinguishesRunsOfTheSameName) {
  const TemporaryFolder folder;
  write_run(folder.path() / "a.jsonl", "same", 0.1);
  write_run(folder.path() / "b.jsonl", "same", 0.1);
  const auto page = render_report({folder.path() / "a.jsonl", folder.path() / "b.jsonl"});
  EXPECT_EQ(count_of(page, "<h1>same \u00B7 same (2)</h1>"), 1);
}

TEST(Report, ReportsOmittedValues) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "a.jsonl";
  write_run(file, "first", 0.1);
  JsonlTracker(file).start("first", {}, 900);
  std::ofstream(file, std::ios::app) << "{\"torn";
  const auto page = render_report({file});
  EXPECT_EQ(count_of(page, "values that a later start made void: 51; unreadable lines: 1"), 1) << page;
  EXPECT_EQ(count_of(page, "resumed at 900"), 1);
}

TEST(Report, RefusesMissingRuns) {
  EXPECT_THROW(render_report({}), UsageError);
  EXPECT_THROW(render_report({"/nowhere/run.jsonl"}), UsageError);
  EXPECT_THROW(render_report({"/dev/zero"}), UsageError);
}

TEST(SummaryTable, ShowsLastAndBestLoss) {
  const RunRecord run{.name = "run",
                      .series = {{"loss", {{1, 3.0}, {2, 1.25}, {3, std::nan("")}, {4, 2.5}}},
                                 {"samples_per_second", {{1, 1.0}, {2, 3000.0}, {3, 2000.0}}}},
                      .session_steps = {0},
                      .last_step = 1234,
                      .wall_seconds = 3725};
  const auto html = summary_table({run});
  EXPECT_EQ(test::xml_problem(html), "");
  for (const auto* cell : {">2.5<", ">1.25<small>step 2<", ">1,234<", ">1 h 02 min<", ">2,000<small>median<"}) {
    EXPECT_EQ(count_of(html, cell), 1) << cell << " is not in " << html;
  }
}

TEST(SummaryTable, ShowsTheBestAccuracyAndWhyTheRunEnded) {
  RunRecord run{.name = "run",
                .series = {{"eval/accuracy", {{1, 0.5}, {2, 0.75}, {3, 0.7}}}},
                .texts = {{.step = 3, .name = end_of_training, .text = "EarlyStopping: <2> evaluations"}},
                .session_steps = {0, 2},
                .last_step = 3};
  const auto html = summary_table({run});
  EXPECT_EQ(test::xml_problem(html), "");
  EXPECT_EQ(count_of(html, ">0.75<small>step 2<"), 1) << html;
  EXPECT_EQ(count_of(html, "resumed at 2; EarlyStopping: &lt;2&gt; evaluations"), 1) << html;
  run.last_step = 9;  // a later start went on
  EXPECT_EQ(count_of(summary_table({run}), "EarlyStopping"), 0);
}

TEST(HyperparameterTable, MarksRowsInWhichRunsDiffer) {
  const std::vector<RunRecord> runs{{.name = "a", .hyperparameters = {{"lr", "1"}, {"model", "gpt"}, {"only", ""}}},
                                    {.name = "b", .hyperparameters = {{"lr", "2"}, {"model", "gpt"}}}};
  const auto html = hyperparameter_table(runs);
  EXPECT_EQ(test::xml_problem(html), "");
  EXPECT_EQ(count_of(html, "<tr class=\"differs\">"), 2);
  EXPECT_EQ(count_of(html, "<tr class=\"differs\"><th scope=\"row\">lr"), 1);
  EXPECT_EQ(count_of(html, "<tr><th scope=\"row\">model"), 1);
  EXPECT_EQ(hyperparameter_table({RunRecord{}}), "");
}

TEST(Html, FormatsNumbers) {
  EXPECT_EQ(format_number(1.23456), "1.235");
  EXPECT_EQ(format_number(-0.5),
            "\u2212"
            "0.5");
  EXPECT_EQ(format_number(6e-5),
            "6e\u2212"
            "5");
  EXPECT_EQ(format_number(1.5e10), "1.5e10");
  EXPECT_EQ(format_number(std::nan("")), "NaN");
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1'234'567), "1,234,567");
  EXPECT_EQ(format_count(-1234),
            "\u2212"
            "1,234");
  EXPECT_EQ(format_wall_time(59), "59 s");
  EXPECT_EQ(format_wall_time(60), "1 min 00 s");
  EXPECT_EQ(format_wall_time(90'000), "1 d 01 h");
  EXPECT_EQ(format_date(0), "1970-01-01 00:00 UTC");
  EXPECT_EQ(px(1.26), "1.3");
  EXPECT_EQ(px(-0.01), "0");
}

TEST(Html, Escapes) {
  EXPECT_EQ(escape("<a href=\"x\">&'\x01"), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;\uFFFD");
}

TEST(Html, GivesEachOfManyRunsItsOwnColourAndShape) {
  std::set<std::string> looks;
  for (std::size_t run = 0; run < 30; ++run) looks.insert(run_swatch(run));
  EXPECT_EQ(looks.size(), 30U);
}

}  // namespace
}  // namespace tutti::report_test
