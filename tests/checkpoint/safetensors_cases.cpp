#include "checkpoint/safetensors_cases.h"

#include <cstdint>
#include <cstring>

namespace tutti::test {
namespace {

std::string with_length(std::uint64_t length, const std::string& rest) {
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  return file + rest;
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets,
                const std::string& more = "") {
  return R"({"w":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + more + "}}";
}

std::string in_quotes(const char* text) {
  std::string result(1, '"');
  return result.append(text).append(1, '"');
}

}  // namespace

std::string file_of(const std::string& json, std::size_t data) {
  return with_length(json.size(), json + std::string(data, '\x01'));
}

std::vector<SafetensorsCase> safetensors_cases() {
  std::vector<SafetensorsCase> list;
  const auto add = [&](const std::string& name, const std::string& file, bool valid, bool reference_valid) {
    list.push_back({name, file, valid, reference_valid});
  };
  const auto good = [&](const std::string& name, const std::string& json, std::size_t data) {
    add(name, file_of(json, data), true, true);
  };
  const auto bad = [&](const std::string& name, const std::string& json, std::size_t data) {
    add(name, file_of(json, data), false, false);
  };
  const std::string deep(300, '[');
  const std::string deep_end(300, ']');

  good("nothing in it", "{}", 0);
  good("one tensor", one("\"F32\"", "[2]", "[0,8]"), 8);
  good("scalar", one("\"F64\"", "[]", "[0,8]"), 8);
  good("zero size", one("\"F32\"", "[0]", "[0,0]"), 0);
  good("zero size within", one("\"F32\"", "[3,0,2]", "[0,0]"), 0);
  good("spaces around", "  " + one("\"U8\"", "[1]", "[0,1]") + " \n\t ", 1);
  good("further field", one("\"U8\"", "[1]", "[0,1]", R"(,"more":{"a":[1,{"b":null}]})"), 1);
  good("further fields of every kind", one("\"U8\"", "[1]", "[0,1]", R"(,"a":-1,"b":1.5,"c":true,"d":"x","e":[])"), 1);
  good("metadata", R"({"__metadata__":{"a":"b","":""}})", 0);
  good("metadata null", R"({"__metadata__":null})", 0);
  good("empty name", R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1);
  good("escaped name", R"({"\u00e4\n":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1);
  good("misaligned", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
                         "b":{"dtype":"F64","shape":[1],"data_offsets":[1,9]}})",
       9);
  good("unsorted", R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},
                       "a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       3);
  for (const char* type : {"BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"}) {
    good(type, one(in_quotes(type), "[3]", "[0,3]"), 3);
  }
  for (const char* type : {"I16", "U16", "F16", "BF16"}) good(type, one(in_quotes(type), "[3]", "[0,6]"), 6);
  for (const char* type : {"I32", "U32", "F32"}) good(type, one(in_quotes(type), "[3]", "[0,12]"), 12);
  for (const char* type : {"I64", "U64", "F64", "C64"}) good(type, one(in_quotes(type), "[3]", "[0,24]"), 24);

  bad("hole", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
                  "b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
      3);
  bad("hole at the beginning", one("\"U8\"", "[1]", "[1,2]"), 2);
  bad("overlap", R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},
                     "b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
      3);
  bad("two at one place", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
                              "b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
      1);
  bad("uncovered tail", one("\"U8\"", "[1]", "[0,1]"), 2);
  bad("tail without tensors", "{}", 1);
  bad("cut data", one("\"U8\"", "[4]", "[0,4]"), 3);
  bad("size of another shape", one("\"F32\"", "[2]", "[0,4]"), 4);
  bad("end before begin", one("\"U8\"", "[1]", "[1,0]"), 1);
  bad("unknown dtype", one("\"F31\"", "[1]", "[0,4]"), 4);
  bad("dtype in small letters", one("\"f32\"", "[1]", "[0,4]"), 4);
  bad("dtype a number", one("32", "[1]", "[0,4]"), 4);
  bad("dtype null", one("null", "[1]", "[0,4]"), 4);
  bad("shape negative", one("\"U8\"", "[-1]", "[0,1]"), 1);
  bad("shape not whole", one("\"U8\"", "[1.0]", "[0,1]"), 1);
  bad("shape a number", one("\"U8\"", "1", "[0,1]"), 1);
  bad("shape nested", one("\"U8\"", "[[1]]", "[0,1]"), 1);
  bad("shape of texts", one("\"U8\"", "[\"1\"]", "[0,1]"), 1);
  bad("shape beyond 64 bits", one("\"U8\"", "[99999999999999999999]", "[0,1]"), 1);
  bad("product beyond 64 bits", one("\"U8\"", "[4294967296,4294967296]", "[0,0]"), 0);
  bad("bytes beyond 64 bits", one("\"F64\"", "[2305843009213693952]", "[0,0]"), 0);
  bad("three offsets", one("\"U8\"", "[1]", "[0,1,1]"), 1);
  bad("one offset", one("\"U8\"", "[1]", "[1]"), 1);
  bad("no offsets", one("\"U8\"", "[0]", "[]"), 0);
  bad("negative offset", one("\"U8\"", "[1]", "[-1,0]"), 1);
  bad("offset not whole", one("\"U8\"", "[1]", "[0,1e0]"), 1);
  bad("offsets beyond the file", one("\"U8\"", "[1]", "[18446744073709551614,18446744073709551615]"), 1);
  bad("no dtype", R"({"w":{"shape":[1],"data_offsets":[0,1]}})", 1);
  bad("no shape", R"({"w":{"dtype":"U8","data_offsets":[0,1]}})", 1);
  bad("no data_offsets", R"({"w":{"dtype":"U8","shape":[0]}})", 0);
  bad("empty tensor", R"({"w":{}})", 0);
  bad("tensor null", R"({"w":null})", 0);
  bad("tensor a text", R"({"w":"U8"})", 0);
  bad("field twice", one("\"U8\"", "[1]", "[0,1]", R"(,"dtype":"U8")"), 1);
  bad("metadata a number", R"({"__metadata__":{"a":1}})", 0);
  bad("metadata nested", R"({"__metadata__":{"a":{}}})", 0);
  bad("metadata a list", R"({"__metadata__":[]})", 0);
  bad("metadata twice", R"({"__metadata__":{},"__metadata__":{}})", 0);
  bad("nothing", "", 0);
  bad("a list", "[]", 0);
  bad("a number", "7", 0);
  bad("not closed", "{", 0);
  bad("two objects", "{}{}", 0);
  bad("comma at the end", R"({"__metadata__":{},})", 0);
  bad("comment", "{}/**/", 0);
  bad("byte order mark", "\xEF\xBB\xBF{}", 0);
  bad("zero byte behind", std::string("{}\0", 3), 0);
  bad("zero byte and more behind", std::string("{}\0{]", 5), 0);
  bad("not UTF-8", "{\"__metadata__\":{\"a\":\"\xff\"}}", 0);
  bad("half a surrogate", R"({"__metadata__":{"a":"\ud800"}})", 0);
  bad("nested too deeply", one("\"U8\"", "[1]", "[0,1]", ",\"x\":" + deep + deep_end), 1);
  add("empty file", "", false, false);
  add("seven bytes", "1234567", false, false);
  add("only a length of zero", with_length(0, ""), false, false);
  add("length beyond the file", with_length(3, "{}"), false, false);
  add("length of all ones", with_length(~std::uint64_t{0}, "{}"), false, false);
  add("length over the limit", with_length(100'000'001, "{}"), false, false);

  // The README of the format forbids these files; the reference reads them.
  add("name twice",
      file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
                                "a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
              1),
      false, true);
  add("metadata's word twice", file_of(R"({"__metadata__":{"a":"b","a":"c"}})", 0), false, true);
  // No tensor of LibTorch can have these shapes.
  add("zero and beyond 63 bits", file_of(one("\"U8\"", "[0,9223372036854775808]", "[0,0]"), 0), false, true);
  add("zero and a product beyond 63 bits", file_of(one("\"U8\"", "[0,4294967296,4294967296]", "[0,0]"), 0), false,
      true);
  // The reference has this dtype, LibTorch does not.
  add("F4", file_of(one("\"F4\"", "[2]", "[0,1]"), 1), false, true);
  // The reference's JSON library accepts a list in place of a struct.
  add("tensor a list", file_of(R"({"w":["U8",[1],[0,1]]})", 1), false, true);
  return list;
}

}  // namespace tutti::test
