"""The models: `build.build_model` makes one by its name in `dystop.training.models.catalogue`.

small, resnet, squeezenet, mobilenet  those that come with dystop
own                                   a user's, by import path
"""
