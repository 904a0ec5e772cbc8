#include "tracking/proto_encoder.h"

#include <gtest/gtest.h>

namespace tutti::proto_encoder_test {
namespace {

using namespace std::string_literals;

// The expected bytes come from the examples in protobuf.dev's encoding guide, or from its Python library.

TEST(ProtoEncoder, WritesVarints) {
  EXPECT_EQ(ProtoMessage().integer(1, 150).encoded(), "\x08\x96\x01"s);
  EXPECT_EQ(ProtoMessage().integer(1, 0).encoded(), "\x08\x00"s);
  EXPECT_EQ(ProtoMessage().integer(1, 127).encoded(), "\x08\x7F"s);
  EXPECT_EQ(ProtoMessage().integer(1, 128).encoded(), "\x08\x80\x01"s);
}

TEST(ProtoEncoder, WritesNegativeNumbersInTenBytes) {
  EXPECT_EQ(ProtoMessage().integer(2, -2).encoded(), "\x10\xFE\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01"s);
}

TEST(ProtoEncoder, WritesFieldNumbersBeyondFifteen) {
  EXPECT_EQ(ProtoMessage().integer(16, 1).encoded(), "\x80\x01\x01"s);
}

TEST(ProtoEncoder, WritesRealNumbers) {
  EXPECT_EQ(ProtoMessage().real32(2, 1.5F).encoded(), "\x15\x00\x00\xC0\x3F"s);
  EXPECT_EQ(ProtoMessage().real64(1, 1.5).encoded(), "\x09\x00\x00\x00\x00\x00\x00\xF8\x3F"s);
}

TEST(ProtoEncoder, WritesBytesAndMessages) {
  EXPECT_EQ(ProtoMessage().bytes(2, "testing").encoded(), "\x12\x07testing"s);
  EXPECT_EQ(ProtoMessage().message(3, ProtoMessage().integer(1, 150)).encoded(), "\x1A\x03\x08\x96\x01"s);
  EXPECT_EQ(ProtoMessage().bytes(1, std::string(200, 'x')).encoded().substr(0, 3), "\x0A\xC8\x01"s);
}

TEST(ProtoEncoder, KeepsTheOrderOfFields) {
  EXPECT_EQ(ProtoMessage().integer(2, 1).integer(1, 2).encoded(), "\x10\x01\x08\x02"s);
}

}  // namespace
}  // namespace tutti::proto_encoder_test
