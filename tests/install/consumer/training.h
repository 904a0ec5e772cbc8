#pragma once

/// Trains a model of one layer for three steps; returns the last loss. In C's terms, so that Python's ctypes can call
/// it.
extern "C" double consumer_train();
