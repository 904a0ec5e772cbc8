#include "checkpoint/safetensors_layout.h"

#include <gtest/gtest.h>

#include <string>

#include "checkpoint/safetensors_cases.h"
#include "checkpoint/scratch.h"
#include "tutti/core/error.h"

namespace tutti::checkpoint::safetensors_layout_test {
namespace {

SafetensorsLayout parse(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file)));
}

TEST(SafetensorsLayout, AcceptsValidAndRejectsInvalidFiles) {
  for (const test::SafetensorsCase& sample : test::safetensors_cases()) {
    SCOPED_TRACE(sample.name);
    if (sample.valid) {
      EXPECT_NO_THROW(parse(sample.file));
    } else {
      EXPECT_THROW(parse(sample.file), CheckpointError);
    }
  }
}

TEST(SafetensorsLayout, ReadsEntriesInTheOrderOfTheirData) {
  const auto layout = parse(test::file_of(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]},
      "__metadata__":{"x":"y"},"a":{"data_offsets":[0,2],"dtype":"BF16","shape":[1,1,1]}})",
                                          6));
  ASSERT_EQ(layout.tensors.size(), 2U);
  EXPECT_EQ(layout.tensors[0].name, "a");
  EXPECT_STREQ(element_types[layout.tensors[0].type].name, "BF16");
  EXPECT_EQ(layout.tensors[0].shape, (std::vector<std::int64_t>{1, 1, 1}));
  EXPECT_EQ(layout.tensors[1].begin, 2U);
  EXPECT_EQ(layout.tensors[1].end, 6U);
  EXPECT_EQ(layout.metadata.at("x"), "y");
}

TEST(SafetensorsLayout, NamesTheError) {
  const auto expect = [](const std::string& json, std::size_t data, std::initializer_list<std::string> parts) {
    test::expect_error<CheckpointError>([&] { parse(test::file_of(json, data)); }, parts);
  };
  expect(R"({"w":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", 4, {"'w'", "'F33'"});
  expect(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, {"'w'", "8 bytes"});
  expect(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 3, {"take 4 bytes", "has 3", "cut off"});
  expect(R"({"w":{"dtype":"F32","shape":[1]}})", 0, {"'w'", "data_offsets"});
  expect(R"({"__metadata__":{"step":7}})", 0, {"a number", "__metadata__"});
}

TEST(SafetensorsLayout, WritesWideTypesFirstThenByName) {
  const auto index_of = [](const std::string& name) {
    std::size_t index = 0;
    while (element_types.at(index).name != name) ++index;
    return index;
  };
  SafetensorsLayout layout{.tensors = {{.name = "b", .type = index_of("F32"), .shape = {3}},
                                       {.name = "c", .type = index_of("U8"), .shape = {5}},
                                       {.name = "a", .type = index_of("U8"), .shape = {1}},
                                       {.name = "z", .type = index_of("I64"), .shape = {}},
                                       {.name = "a.i", .type = index_of("I32"), .shape = {1}}},
                           .metadata = {{"for", "\"them\""}}};
  const std::string header = make_header(layout);
  EXPECT_EQ(header.size() % 8, 0U);
  std::string names;
  for (const TensorEntry& entry : layout.tensors) names += entry.name + " ";
  EXPECT_EQ(names, "z a.i b a c ");
  const auto read = parse(header + std::string(8 + 4 + 12 + 6, 'x'));
  EXPECT_EQ(read.tensors.size(), 5U);
  EXPECT_EQ(read.metadata, layout.metadata);
  EXPECT_EQ(read.tensors[2].begin, 12U);
}

TEST(SafetensorsLayout, RefusesNamesThatCannotBeWritten) {
  SafetensorsLayout reserved{.tensors = {{.name = "__metadata__", .shape = {}}}};
  EXPECT_THROW(make_header(reserved), UsageError);
  SafetensorsLayout latin1{.tensors = {{.name = "caf\xe9", .shape = {}}}};
  EXPECT_THROW(make_header(latin1), UsageError);
}

}  // namespace
}  // namespace tutti::checkpoint::safetensors_layout_test
