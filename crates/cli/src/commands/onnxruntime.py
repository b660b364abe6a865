"""Runs an ONNX file with onnxruntime: arguments are a folder with inputs.json and the file."""

import json
import os
import sys

import numpy
import onnxruntime

folder, model = sys.argv[1:3]
with open(os.path.join(folder, "inputs.json"), encoding="utf-8") as file:
    inputs = json.load(file)
feed = {
    entry["name"]: numpy.fromfile(os.path.join(folder, entry["file"]), entry["dtype"]).reshape(entry["shape"])
    for entry in inputs
}
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
outputs = []
for output, array in zip(session.get_outputs(), session.run(None, feed)):
    file = f"output{len(outputs)}"
    array.tofile(os.path.join(folder, file))
    outputs.append({"name": output.name, "file": file, "dtype": str(array.dtype), "shape": array.shape})
print(json.dumps({"version": onnxruntime.__version__, "outputs": outputs}))
