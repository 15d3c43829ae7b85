"""The models that come with dystop; `build.build_model` builds one by its name.

catalogue    the names, without torch
build        `build_model`, also for a user's own module
small        softmax regression, the paper's CNN, small networks
resnet       ResNet-18
squeezenet   SqueezeNet
mobilenet    MobileNet
transformer  small transformers
"""
